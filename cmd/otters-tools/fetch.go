package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
)

// Bounds of one request, and what holds when nothing is said.
const (
	defaultBody      = 10 << 20
	maxBody          = 1 << 30
	defaultSeconds   = 30
	maxSeconds       = 600
	defaultRedirects = 5
	maxRedirects     = 20
	maxHeaderBytes   = 1 << 20
)

// request is one run of fetch.
type request struct {
	c                                   *call
	data, dataFile, file                *string
	head, show                          *bool
	headers                             *[]string
	maxBytes, seconds, redirects        *string
	bytesLimit, secondsLimit, hopsLimit int64
	post                                bool
	custom                              http.Header
}

func fetch(c *call, flags *pflag.FlagSet) func([]string) error {
	q := request{
		c:         c,
		data:      flags.StringP("data", "d", "", "send `TEXT` by POST"),
		dataFile:  flags.String("data-file", "", "send what is in `FILE` by POST; - is standard input"),
		headers:   flags.StringArrayP("header", "H", nil, "send the header `NAME: VALUE`; may be repeated"),
		file:      flags.StringP("output", "o", "", "save the answer as `FILE` instead of printing it"),
		head:      flags.BoolP("head", "I", false, "ask for the headers alone, by HEAD, and print them"),
		show:      flags.BoolP("include", "i", false, "print status and headers before the answer"),
		maxBytes:  flags.String("max-bytes", strconv.Itoa(defaultBody), "take `N` bytes at most"),
		seconds:   flags.String("max-time", strconv.Itoa(defaultSeconds), "take `N` seconds at most, for all of it"),
		redirects: flags.String("max-redirects", strconv.Itoa(defaultRedirects), "follow `N` redirects at most"),
	}
	return func(operands []string) error {
		if len(operands) != 1 {
			return usageError("want one URL")
		}
		target, err := parseURL(operands[0])
		if err != nil {
			return err
		}
		if err := q.check(flags); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(q.secondsLimit)*time.Second)
		defer cancel()
		if err := q.run(ctx, target); err != nil && c.sink.err == nil {
			c.fail(target.Redacted(), q.explain(ctx, err))
		}
		return c.sink.err
	}
}

func parseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil {
		var detail *url.Error
		if errors.As(err, &detail) {
			err = detail.Err
		}
		return nil, usageError("the URL: %v", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, usageError("%s: want a URL that starts with http:// or https://", u.Redacted())
	}
	return u, nil
}

func (q *request) check(flags *pflag.FlagSet) error {
	q.post = flags.Changed("data") || flags.Changed("data-file")
	switch {
	case flags.Changed("data") && flags.Changed("data-file"):
		return usageError("--data and --data-file: only one of them at a time")
	case q.post && *q.head:
		return usageError("-I: not together with --data or --data-file")
	case *q.file != "" && (*q.head || *q.show):
		return usageError("-o: not together with -I or -i")
	case strings.HasPrefix(*q.data, "@"):
		return usageError("--data %s: the text is sent as it is; for a file use --data-file", *q.data)
	}
	for _, limit := range []struct {
		name, text string
		most       int64
		into       *int64
	}{
		{"--max-bytes", *q.maxBytes, maxBody, &q.bytesLimit},
		{"--max-time", *q.seconds, maxSeconds, &q.secondsLimit},
		{"--max-redirects", *q.redirects, maxRedirects, &q.hopsLimit},
	} {
		n, err := strconv.ParseInt(limit.text, 10, 64)
		if err != nil || n < 0 || n > limit.most || n == 0 && limit.most != maxRedirects {
			return usageError("%s %s: want a whole number up to %d", limit.name, limit.text, limit.most)
		}
		*limit.into = n
	}
	q.custom = http.Header{}
	for _, h := range *q.headers {
		name, value, ok := strings.Cut(h, ":")
		if name = strings.TrimSpace(name); !ok || name == "" || strings.ContainsAny(h, "\r\n\x00") {
			return usageError("-H %s: want NAME: VALUE", h)
		}
		switch http.CanonicalHeaderKey(name) {
		case "Host", "Content-Length", "Transfer-Encoding", "Connection", "Proxy-Authorization":
			return usageError("-H %s: this header is not yours to send", name)
		}
		q.custom.Add(name, strings.TrimSpace(value))
	}
	return nil
}

// body returns what is sent, nil for nothing, and its kind.
func (q *request) body() ([]byte, string, error) {
	data := []byte(*q.data)
	var err error
	switch {
	case *q.dataFile == "-":
		data, err = readAll(q.c.stdin, maxWritten)
	case *q.dataFile != "":
		var f *os.File
		if f, err = os.Open(*q.dataFile); err == nil {
			data, err = readAll(f, maxWritten)
			f.Close()
		}
	}
	if err != nil {
		return nil, "", fmt.Errorf("--data-file %s: %s", *q.dataFile, cause(err))
	}
	if json.Valid(data) {
		return data, "application/json", nil
	}
	return data, "text/plain; charset=utf-8", nil
}

func (q *request) run(ctx context.Context, target *url.URL) error {
	client, err := q.client()
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	method, kind := http.MethodGet, ""
	var body io.Reader
	if *q.head {
		method = http.MethodHead
	}
	if q.post {
		data, k, err := q.body()
		if err != nil {
			return err
		}
		method, kind, body = http.MethodPost, k, strings.NewReader(string(data))
	}
	req, err := http.NewRequestWithContext(ctx, method, target.String(), body)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "otters-fetch")
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	for name, values := range q.custom {
		req.Header[name] = values
	}
	answer, err := client.Do(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	proxied := os.Getenv("HTTP_PROXY")+os.Getenv("HTTPS_PROXY") != ""
	if proxied && answer.Request.URL.Scheme == "http" && answer.StatusCode >= 400 {
		if err := refusedByProxy(answer); err != nil {
			return err
		}
	}
	if err := q.take(answer); err != nil {
		return err
	}
	if answer.StatusCode >= 400 {
		return fmt.Errorf("the server answered %s", answer.Status)
	}
	return nil
}

// client goes out through the proxy alone when one is set.
func (q *request) client() (*http.Client, error) {
	proxy, err := proxyOf(os.Getenv)
	if err != nil {
		return nil, err
	}
	return &http.Client{
		Transport: &http.Transport{
			Proxy: proxy, OnProxyConnectResponse: tunnelRefused, MaxResponseHeaderBytes: maxHeaderBytes, ForceAttemptHTTP2: true,
			DialContext: (&net.Dialer{Timeout: maxSeconds * time.Second}).DialContext,
		},
		CheckRedirect: func(next *http.Request, before []*http.Request) error {
			last := before[len(before)-1].URL
			switch {
			case int64(len(before)) > q.hopsLimit:
				return fmt.Errorf("more than %d redirects", q.hopsLimit)
			case next.URL.Scheme != "http" && next.URL.Scheme != "https":
				return fmt.Errorf("a redirect to %s:, which is neither http nor https", next.URL.Scheme)
			case last.Scheme == "https" && next.URL.Scheme == "http":
				return errors.New("a redirect from https to http")
			}
			// What was meant for one server is not for another.
			if next.URL.Host != before[0].URL.Host {
				for name := range q.custom {
					next.Header.Del(name)
				}
			}
			return nil
		},
	}, nil
}

// take prints or saves the answer. What is too long is not saved.
func (q *request) take(answer *http.Response) error {
	if *q.head || *q.show {
		fmt.Fprintf(q.c.stdout, "%s %s\n", answer.Proto, answer.Status)
		if err := answer.Header.Write(crlfless{q.c.stdout}); err != nil {
			return err
		}
		if *q.head {
			return nil
		}
		fmt.Fprintln(q.c.stdout)
	}
	if answer.ContentLength > q.bytesLimit {
		return fmt.Errorf("the answer has %d bytes, more than the %d of --max-bytes", answer.ContentLength, q.bytesLimit)
	}
	if *q.file == "" || answer.StatusCode >= 400 {
		_, err := q.copy(q.c.stdout, answer.Body)
		return err
	}
	t, err := openTree()
	if err != nil {
		return err
	}
	defer t.close()
	rel, old, err := t.target(*q.file)
	var n int64
	if err == nil {
		err = t.replace(rel, old, func(w io.Writer) (err error) {
			n, err = q.copy(w, answer.Body)
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("-o %s: %s", *q.file, cause(err))
	}
	_, err = fmt.Fprintf(q.c.stdout, "%d bytes written to %s\n", n, *q.file)
	return err
}

// crlfless takes the carriage returns out of headers, which have no others.
type crlfless struct{ w io.Writer }

func (c crlfless) Write(p []byte) (int, error) {
	_, err := io.WriteString(c.w, strings.ReplaceAll(string(p), "\r", ""))
	return len(p), err
}

func (q *request) copy(w io.Writer, body io.Reader) (int64, error) {
	n, err := io.Copy(w, io.LimitReader(body, q.bytesLimit))
	if err != nil {
		return n, err
	}
	if more, _ := io.ReadFull(body, make([]byte, 1)); more > 0 {
		return n, fmt.Errorf("the answer has more than the %d bytes of --max-bytes", q.bytesLimit)
	}
	return n, nil
}

// explain says in one line what kept the answer away.
func (q *request) explain(ctx context.Context, err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("took longer than the %d seconds of --max-time", q.secondsLimit)
	case noNetwork(err):
		return fmt.Errorf("this agent has no network (%w); it is given one with --allow-net, though not for what exec runs", err)
	}
	return err
}

// noNetwork tells whether the machine, not the other side, refused. A name that can't be looked up
// counts where no interface but loopback is up.
func noNetwork(err error) bool {
	for _, errno := range []syscall.Errno{syscall.ENETUNREACH, syscall.EPERM, syscall.EACCES, syscall.EAFNOSUPPORT, syscall.ENETDOWN} {
		if errors.Is(err, errno) {
			return true
		}
	}
	var lookup *net.DNSError
	if !errors.As(err, &lookup) {
		return false
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		return true
	}
	for _, i := range interfaces {
		if i.Flags&net.FlagUp != 0 && i.Flags&net.FlagLoopback == 0 {
			return false
		}
	}
	return true
}

package main

import (
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// pages answers what the cases of fetch ask for.
func pages() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/hello", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Kind", "otter")
		w.Header().Set("Date", "Thu, 01 Jan 1970 00:00:00 GMT")
		fmt.Fprintln(w, "hello")
	})
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		fmt.Fprintln(w, r.Method, r.Header.Get("Content-Type"), r.Header.Get("X-Token"), string(body), err)
	})
	mux.HandleFunc("/long", func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush() // no length beforehand
		w.Write(bytes.Repeat([]byte("x"), 1000))
	})
	mux.HandleFunc("/loop", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/loop", http.StatusFound) })
	mux.HandleFunc("/once", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/echo", http.StatusFound) })
	mux.HandleFunc("/file", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "file:///etc/passwd", http.StatusFound)
	})
	mux.HandleFunc("/away", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.URL.Query().Get("to"), http.StatusFound)
	})
	mux.HandleFunc("/never", func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	return mux
}

// Invariant: what is asked for comes back whole and within its bounds, or one line says why not. Worst
// inputs: an answer without end, redirects in a circle or to a file, and a server that says nothing.
func TestFetch(t *testing.T) {
	t.Parallel()
	server, other := httptest.NewServer(pages()), httptest.NewServer(pages())
	t.Cleanup(server.Close) // when the cases beside each other are over
	t.Cleanup(other.Close)
	tests := []struct {
		args, stdin, stdout, stderr string // URL is the server
		code                        int
	}{
		{args: "URL/hello", stdout: "hello\n"},
		{args: "-i URL/hello", stdout: "HTTP/1.1 200 OK\nContent-Length: 6\nContent-Type: text/plain; charset=utf-8\nDate: Thu, 01 Jan 1970 00:00:00 GMT\nX-Kind: otter\n\nhello\n"},
		{args: "-I URL/hello", stdout: "HTTP/1.1 200 OK\nContent-Length: 6\nContent-Type: text/plain; charset=utf-8\nDate: Thu, 01 Jan 1970 00:00:00 GMT\nX-Kind: otter\n"},
		{args: "URL/echo", stdout: "GET    <nil>\n"},
		{args: "-d a URL/echo", stdout: "POST text/plain; charset=utf-8  a <nil>\n"},
		{args: "--data-file - -H X-Token:~t URL/echo", stdin: "[1]", stdout: "POST application/json t [1] <nil>\n"},
		{args: "-d [1] -H Content-Type:~a/b URL/echo", stdout: "POST a/b  [1] <nil>\n"},
		{args: "-H X-Token:t URL/once", stdout: "GET  t  <nil>\n"},
		{args: "-H X-Token:t URL/away?to=OTHER/echo", stdout: "GET    <nil>\n"},
		{args: "--max-bytes 1000 -o sub/saved URL/long", stdout: "1000 bytes written to sub/saved\n"},
		{args: "--max-bytes 999 -o other URL/long", stderr: "-o other: the answer has more than the 999 bytes of --max-bytes", code: 1},
		{args: "--max-bytes 5 URL/hello", stderr: "the answer has 6 bytes, more than the 5 of --max-bytes", code: 1},
		{args: "-o ../outside URL/hello", stderr: "-o ../outside: leads out of the agent's tree DIR", code: 1},
		{args: "-o other URL/absent", stdout: "404 page not found\n", stderr: "the server answered 404 Not Found", code: 1},
		{args: "URL/loop", stderr: "more than 5 redirects", code: 1},
		{args: "--max-redirects 0 URL/once", stderr: "more than 0 redirects", code: 1},
		{args: "URL/file", stderr: "a redirect to file:, which is neither http nor https", code: 1},
		{args: "--max-time 1 URL/never", stderr: "took longer than the 1 seconds of --max-time", code: 1},
		{args: "--data-file absent URL/echo", stderr: "--data-file absent: no such file or directory", code: 1},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			t.Parallel()
			dir := tempDir(t)
			place := strings.NewReplacer("URL", server.URL, "OTHER", other.URL, "DIR", dir)
			argv := []string{"fetch"}
			for arg := range strings.FieldsSeq(place.Replace(tt.args)) {
				argv = append(argv, strings.ReplaceAll(arg, "~", " "))
			}
			want := result{tt.stdout, "", tt.code}
			if tt.stderr != "" {
				want.stderr = "fetch: " + argv[len(argv)-1] + ": " + place.Replace(tt.stderr) + "\n"
			}
			if got := start(t, dir, tt.stdin, built, argv...); got != want {
				t.Errorf("%+v, want %+v", got, want)
			}
			wantFiles := ""
			if strings.Contains(tt.stdout, "written to") {
				wantFiles = "sub sub/saved"
			}
			if left := names(t, dir); left != wantFiles {
				t.Errorf("left %q", left)
			}
		})
	}
}

func TestFetchRefusesAWrongCall(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"":                        "want one URL",
		"http://a http://b":       "want one URL",
		"file:///etc/passwd":      "file:///etc/passwd: want a URL that starts with http:// or https://",
		"/etc/passwd":             "/etc/passwd: want a URL that starts with http:// or https://",
		"http://":                 "http:: want a URL that starts with http:// or https://",
		"http://a:b":              `the URL: invalid port ":b" after host`,
		"-d a --data-file b http": "http: want a URL that starts with http:// or https://",
		"-d @f http://a":          "--data @f: the text is sent as it is; for a file use --data-file",
		"-I -d x http://a":        "-I: not together with --data or --data-file",
		"-I -o x http://a":        "-o: not together with -I or -i",
		"-H x http://a":           "-H x: want NAME: VALUE",
		"-H Host:x http://a":      "-H Host: this header is not yours to send",
		"--max-bytes 0 http://a":  "--max-bytes 0: want a whole number up to 1073741824",
		"--max-time 601 http://a": "--max-time 601: want a whole number up to 600",
		"-X PUT http://a":         "unknown shorthand flag: 'X' in -X",
	} {
		got := start(t, tempDir(t), "", built, append([]string{"fetch"}, strings.Fields(args)...)...)
		if first, _, _ := strings.Cut(got.stderr, "\n"); first != "fetch: "+want || got.code != 2 || got.stdout != "" {
			t.Errorf("%s: %+v", args, got)
		}
	}
}

// Invariant: when a proxy is set it is the only way out, for loopback too and whatever NO_PROXY says.
func TestFetchGoesThroughTheProxyAlone(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(pages())
	defer server.Close()
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodConnect {
			if r.Host == "localhost:2" {
				w.Header().Set("Proxy-Status", `p; error=http_request_denied; details="\"localhost\" is not named"; x="y"`)
			}
			http.Error(w, "no tunnels", http.StatusForbidden)
			return
		}
		if r.URL.Host == "localhost:2" {
			w.Header().Set("Proxy-Status", `p; error=http_request_denied; details="not named"`)
			w.WriteHeader(http.StatusForbidden)
		}
		fmt.Fprintln(w, "proxied", r.URL.Host != "")
	}))
	defer proxy.Close()
	set := func(name, value string) []string { return []string{name + "=" + value, "NO_PROXY=*", "no_proxy=*"} }
	tests := []struct {
		env  []string
		url  string
		want result
	}{
		{nil, server.URL + "/hello", result{"hello\n", "", 0}},
		{set("HTTP_PROXY", proxy.URL), server.URL + "/hello", result{"proxied true\n", "", 0}},
		{set("HTTPS_PROXY", proxy.URL), server.URL + "/hello", result{"proxied true\n", "", 0}},
		{set("HTTPS_PROXY", proxy.URL), "https://localhost:1/x", result{"", "fetch: https://localhost:1/x: Forbidden\n", 1}},
		{set("HTTP_PROXY", proxy.URL), "https://localhost:1/x", result{"", "fetch: https://localhost:1/x: Forbidden\n", 1}},
		{set("HTTP_PROXY", proxy.URL), "https://localhost:2/x", result{"", "fetch: https://localhost:2/x: refused by the proxy: \"localhost\" is not named\n", 1}},
		{set("HTTP_PROXY", proxy.URL), "http://localhost:2/x", result{"", "fetch: http://localhost:2/x: refused by the proxy: not named\n", 1}},
		{set("HTTP_PROXY", "socks5://localhost:1"), server.URL + "/hello", result{"", "fetch: " + server.URL + "/hello: HTTP_PROXY: want a URL that starts with http:// or https://\n", 1}},
	}
	for _, tt := range tests {
		if got := startIn(t, tt.env, tempDir(t), "", built, "fetch", tt.url); got != tt.want {
			t.Errorf("%v %s: %+v", tt.env, tt.url, got)
		}
	}
}

func TestFetchChecksWhoAnswers(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(pages())
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	got := start(t, tempDir(t), "", built, "fetch", server.URL+"/hello")
	if got.code != 1 || got.stdout != "" || !strings.Contains(got.stderr, "certificate signed by unknown authority") {
		t.Errorf("%+v", got)
	}
	plain := httptest.NewServer(pages())
	defer plain.Close()
	authority := tempDir(t) + "/ca.pem"
	if err := os.WriteFile(authority, pemOf(server), 0o600); err != nil {
		t.Fatal(err)
	}
	env := []string{"SSL_CERT_FILE=" + authority}
	if got := startIn(t, env, tempDir(t), "", built, "fetch", server.URL+"/hello"); got != (result{"hello\n", "", 0}) {
		t.Errorf("%+v", got)
	}
	down := server.URL + "/away?to=" + plain.URL + "/hello"
	if got := startIn(t, env, tempDir(t), "", built, "fetch", down); got != (result{"", "fetch: " + down + ": a redirect from https to http\n", 1}) {
		t.Errorf("%+v", got)
	}
}

// A namespace without a network is what an agent has at strict.
func TestFetchWithoutANetworkSaysSo(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"http://192.0.2.1/", "http://example.org/"} {
		cmd := exec.Command(built)
		cmd.Args = []string{"fetch", url}
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		if os.Getuid() != 0 {
			cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		}
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		err := cmd.Run()
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			t.Skip("no namespaces here:", err)
		}
		text := stderr.String()
		if exit.ExitCode() != 1 || strings.Count(text, "\n") != 1 || !strings.HasPrefix(text, "fetch: "+url+": this agent has no network (") ||
			!strings.HasSuffix(text, "; it is given one with --allow-net, though not for what exec runs\n") {
			t.Errorf("%s: %q", url, text)
		}
	}
}

func pemOf(server *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}

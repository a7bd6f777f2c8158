package gate

import (
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// HTTPOptions says what HTTP lets through. The zero value refuses everything, since it names no
// host.
type HTTPOptions struct {
	// Hosts are the exact host[:port] names that a request may be addressed to, such as
	// LoopbackHosts gives. Case does not matter.
	Hosts []string
	// HostAllowed, if set, is asked about hosts that are not in Hosts.
	HostAllowed func(host string) bool
	// Origins are the exact origins (scheme://host[:port], lower case) whose pages may call. Empty
	// means that no page may. "null" is never allowed.
	Origins []string
	// RefuseSimpleTypes refuses a request that may have a body (every method but GET, HEAD and
	// OPTIONS) when its content type is missing or one that a web page may send without asking
	// first: text/plain, application/x-www-form-urlencoded and multipart/form-data.
	RefuseSimpleTypes bool
}

// HTTP checks a request before next sees it, in this order: Host (421, against DNS rebinding),
// Origin, fetch metadata, Referer (403, against web pages), content type (415). A WebSocket upgrade
// needs an allowed Origin. A refusal is JSON, {"error":{"message","code"}}, and its message names
// the rule. Every answer, next's too, carries nosniff and a content security policy that loads
// nothing (next may set another policy), and never a CORS wildcard.
func HTTP(next http.Handler, opts HTTPOptions) http.Handler {
	opts.Hosts = slices.Clone(opts.Hosts)
	opts.Origins = slices.Clone(opts.Origins)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		if f := opts.check(r); f != nil {
			f.write(w)
			return
		}
		next.ServeHTTP(&answer{ResponseWriter: w}, r)
	})
}

// LoopbackHosts are the names that a program on this machine may use for a listener at addr: of a
// TCP address 127.0.0.1, localhost and [::1] with its port, of any other address localhost, which
// is what clients say on a Unix socket.
func LoopbackHosts(addr net.Addr) []string {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return []string{"localhost"}
	}
	port := fmt.Sprint(tcp.Port)
	return []string{net.JoinHostPort("127.0.0.1", port), net.JoinHostPort("localhost", port), net.JoinHostPort("::1", port)}
}

// refusal is an answer that says no.
type refusal struct {
	status        int
	code, message string
}

func (f *refusal) write(w http.ResponseWriter) {
	type body struct {
		Message string `json:"message"`
		Code    string `json:"code"`
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(f.status)
	// The peer that hangs up has been told all there is to say.
	_ = json.NewEncoder(w).Encode(map[string]body{"error": {f.message, f.code}})
}

func forbid(code, format string, args ...any) *refusal {
	return &refusal{http.StatusForbidden, code, fmt.Sprintf(format, args...)}
}

func (o *HTTPOptions) check(r *http.Request) *refusal {
	if !hostIn(r.Host, o.Hosts) && (o.HostAllowed == nil || r.Host == "" || !o.HostAllowed(r.Host)) {
		return &refusal{http.StatusMisdirectedRequest, "host_not_allowed",
			fmt.Sprintf("host %q: not a name of this listener; use %s", clip(r.Host), nameHosts(o.Hosts))}
	}
	known, f := o.checkOrigin(r)
	if f != nil {
		return f
	}
	if f := checkFetchSite(r, known); f != nil {
		return f
	}
	if f := o.checkReferer(r); f != nil {
		return f
	}
	if o.RefuseSimpleTypes {
		return checkType(r)
	}
	return nil
}

// checkOrigin tells whether the request comes from a page of an allowed origin.
func (o *HTTPOptions) checkOrigin(r *http.Request) (known bool, f *refusal) {
	origins := r.Header.Values("Origin")
	switch {
	case len(origins) > 1:
		return false, forbid("origin_not_allowed", "origin: %d headers where one is allowed; send one or none", len(origins))
	case len(origins) == 1 && !o.originAllowed(origins[0]):
		return false, forbid("origin_not_allowed", "origin %q: its pages may not call this listener; use a program that is not a web page", clip(origins[0]))
	case len(origins) == 0 && isUpgrade(r):
		return false, forbid("origin_missing", "websocket: no Origin header; send one that is allowed")
	}
	return len(origins) == 1, nil
}

func (o *HTTPOptions) originAllowed(origin string) bool {
	return origin != "" && origin != "null" && slices.Contains(o.Origins, origin)
}

// isUpgrade tells whether the request wants to leave HTTP; CONNECT is how HTTP/2 opens a WebSocket.
func isUpgrade(r *http.Request) bool {
	return len(r.Header.Values("Upgrade")) > 0 || r.Method == http.MethodConnect
}

// checkFetchSite refuses what a browser sends for other pages. "same-site" is refused too: sites
// ignore ports, so any server of this machine has the site of localhost.
func checkFetchSite(r *http.Request, knownOrigin bool) *refusal {
	for _, site := range r.Header.Values("Sec-Fetch-Site") {
		if site != "same-origin" && site != "none" && !knownOrigin {
			return forbid("cross_site", "sec-fetch-site %q: sent by a page of another origin; use a program that is not a web page", clip(site))
		}
	}
	return nil
}

func (o *HTTPOptions) checkReferer(r *http.Request) *refusal {
	for _, ref := range r.Header.Values("Referer") {
		u, err := url.Parse(ref)
		if err != nil || !o.originAllowed(strings.ToLower(u.Scheme+"://"+u.Host)) {
			return forbid("referer_not_allowed", "referer: its pages may not call this listener; use a program that is not a web page")
		}
	}
	return nil
}

func checkType(r *http.Request) *refusal {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return nil
	}
	refuse := func(what string) *refusal {
		return &refusal{http.StatusUnsupportedMediaType, "content_type_not_allowed",
			"content type: " + what + "; name the type of the body, such as application/json"}
	}
	values := r.Header.Values("Content-Type")
	if len(values) != 1 {
		return refuse(fmt.Sprintf("%d headers where one is needed", len(values)))
	}
	kind, _, err := mime.ParseMediaType(values[0])
	if err != nil {
		return refuse("not a media type")
	}
	switch kind {
	case "text/plain", "application/x-www-form-urlencoded", "multipart/form-data":
		return refuse(kind + " is what a web page may send without asking")
	}
	return nil
}

// answer takes a CORS wildcard out of what the handler says.
type answer struct {
	http.ResponseWriter
	wrote bool
}

func (a *answer) WriteHeader(status int) {
	if !a.wrote {
		// Informational answers may come before the one that counts.
		a.wrote = status >= 200 || status == http.StatusSwitchingProtocols
		h := a.Header()
		if slices.Contains(h["Access-Control-Allow-Origin"], "*") {
			h.Del("Access-Control-Allow-Origin")
		}
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(p []byte) (int, error) {
	if !a.wrote {
		a.WriteHeader(http.StatusOK)
	}
	return a.ResponseWriter.Write(p)
}

// ReadFrom hands a file on to be sent by the kernel, where the answer below can do that.
func (a *answer) ReadFrom(r io.Reader) (int64, error) {
	if !a.wrote {
		a.WriteHeader(http.StatusOK)
	}
	return io.Copy(a.ResponseWriter, r)
}

// Flush sends what was written; handlers of gRPC look for it by type.
func (a *answer) Flush() {
	if !a.wrote {
		a.WriteHeader(http.StatusOK)
	}
	_ = http.NewResponseController(a.ResponseWriter).Flush()
}

// Unwrap lets http.ResponseController reach deadlines, full duplex and hijacking.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

var (
	_ http.Flusher  = (*answer)(nil)
	_ io.ReaderFrom = (*answer)(nil)
)

package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// proxyOf returns which proxy a request goes through: HTTP_PROXY, HTTPS_PROXY for https, either for
// both when the other is not set. There are no exceptions, not for loopback either.
func proxyOf(getenv func(string) string) (func(*http.Request) (*url.URL, error), error) {
	proxies := map[string]*url.URL{}
	for scheme, name := range map[string]string{"http": "HTTP_PROXY", "https": "HTTPS_PROXY"} {
		text := getenv(name)
		if text == "" {
			continue
		}
		u, err := url.Parse(text)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return nil, fmt.Errorf("%s: want a URL that starts with http:// or https://", name)
		}
		proxies[scheme] = u
	}
	if len(proxies) == 0 {
		return nil, nil
	}
	for _, pair := range [][2]string{{"http", "https"}, {"https", "http"}} {
		if proxies[pair[0]] == nil {
			proxies[pair[0]] = proxies[pair[1]]
		}
	}
	return func(r *http.Request) (*url.URL, error) { return proxies[r.URL.Scheme], nil }, nil
}

// tunnelRefused says why the proxy made no tunnel, where it says that.
func tunnelRefused(_ context.Context, _ *url.URL, _ *http.Request, answer *http.Response) error {
	if answer.StatusCode == http.StatusOK {
		return nil
	}
	return refusedByProxy(answer)
}

// refusedByProxy is the reason in Proxy-Status (RFC 9209), nil where the answer has none.
func refusedByProxy(answer *http.Response) error {
	status := answer.Header.Get("Proxy-Status")
	_, details, ok := strings.Cut(status, `; details="`)
	if !ok || !strings.Contains(status, "; error=") {
		return nil
	}
	var text strings.Builder
	for escaped, i := false, 0; i < len(details); i++ {
		switch c := details[i]; {
		case c == '\\' && !escaped:
			escaped = true
			continue
		case c == '"' && !escaped:
			i = len(details)
			continue
		default:
			text.WriteByte(c)
			escaped = false
		}
	}
	return fmt.Errorf("refused by the proxy: %s", text.String())
}

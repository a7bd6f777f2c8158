// Package endpoint is what the model clients of the loop have in common: where a model is, what is
// read of it at most, and how its errors are told. No answer is read without a bound, no redirect is
// followed, and no error holds the key. The clients below loop call it.
package endpoint

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// GatewayKeyPrefix starts the keys a gateway gives out. With such a key nothing is retried by a
// client: whoever counts and decides is the gateway.
const GatewayKeyPrefix = "otr_"

// maxRetries is what a client without a gateway in front of it does about 429 and 5xx.
const maxRetries = 2

// DefaultIdleTimeout is long enough for a model that thinks in silence.
const DefaultIdleTimeout = 5 * time.Minute

// Endpoint is where a model is. BaseURL and Model are required; the others have defaults.
type Endpoint struct {
	BaseURL     string
	APIKey      string
	Model       string
	IdleTimeout time.Duration
	Transport   http.RoundTripper
}

// Check tells what is wrong with the endpoint, and sets defaults.
func (e *Endpoint) Check() error {
	u, err := url.Parse(e.BaseURL)
	switch {
	case err != nil:
		return errors.New("base address is no URL")
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return fmt.Errorf("base address %q is no http or https URL", u.Redacted())
	case e.Model == "":
		return errors.New("no model named")
	case strings.ContainsAny(e.APIKey, "\r\n\x00"):
		return errors.New("the key holds a line break")
	}
	if e.IdleTimeout <= 0 {
		e.IdleTimeout = DefaultIdleTimeout
	}
	if e.Transport == nil {
		e.Transport = http.DefaultTransport
	}
	return nil
}

// Retries is how often a client may send a request again.
func (e *Endpoint) Retries() int {
	if strings.HasPrefix(e.APIKey, GatewayKeyPrefix) {
		return 0
	}
	return maxRetries
}

// Client is what requests are sent with.
func (e *Endpoint) Client() *http.Client {
	return &http.Client{Transport: bounded{e.Transport, restWait}, CheckRedirect: refuseRedirect}
}

var errRedirect = errors.New("the provider redirects, which would take the key elsewhere; set its final address")

func refuseRedirect(*http.Request, []*http.Request) error { return errRedirect }

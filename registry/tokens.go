package registry

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

const (
	// tokenLife is how long an issued token is good; clients ask for another by themselves.
	tokenLife = 5 * time.Minute
	// maxScopes bounds what one token is for, and maxTokenForm the body that asks for it.
	maxScopes    = 100
	maxTokenForm = 64 << 10
	// maxToken bounds a token that is looked at.
	maxToken = 64 << 10

	tokenService = "otters registry"
)

// Actions on a repository. Whoever may push may delete: it could replace each tag by nothing much.
const (
	actionPull   = "pull"
	actionPush   = "push"
	actionDelete = "delete"
	actionAll    = "*"

	catalogScope = "registry:catalog:*"
)

// grant is what an issued token allows until it ends. A nil one allows everything.
type grant struct {
	// Expires is in Unix seconds.
	Expires int64 `json:"e"`
	// Repositories are the actions by name.
	Repositories map[string][]string `json:"r,omitempty"`
	Catalog      bool                `json:"c,omitempty"`
}

func (g *grant) may(action, repository string) bool {
	if g == nil {
		return true
	}
	actions := g.Repositories[repository]
	return slices.Contains(actions, action) || slices.Contains(actions, actionAll) || action == actionDelete && slices.Contains(actions, actionPush)
}

// needs is the scope of a request: an action on its repository, the catalog, or nothing.
func (x *exchange) needs(to *route) (action string, catalog bool) {
	reads := x.r.Method == http.MethodGet || x.r.Method == http.MethodHead
	switch {
	case to == nil, to == routePing, to == routeToken:
		return "", false
	case to == routeCatalog:
		return "", true
	case to == routeUploads, to == routeUpload:
		return actionPush, false
	case reads:
		return actionPull, false
	case x.r.Method == http.MethodDelete:
		return actionDelete, false
	}
	return actionPush, false
}

// authorize finds out what the caller may. A wrong token is refused even where none is needed. What
// can't succeed anyway, as bad tells, needs no scope.
func (x *exchange) authorize(to *route, bad error) error {
	if to == routeToken {
		return nil // it looks for itself
	}
	action, catalog := x.needs(to)
	scheme, token := presentedToken(x.r)
	if scheme == "" {
		reads := x.r.Method == http.MethodGet || x.r.Method == http.MethodHead
		if x.opts.AnonymousPull && reads && to != nil && to.public {
			x.grant = &grant{}
			return nil
		}
		return x.challenge(action, catalog, "", "a token is needed: send it as the password of Basic, with any user name, or as Bearer")
	}
	if x.isToken(token) {
		return nil
	}
	g, ok := x.openToken(scheme, token)
	switch {
	case !ok:
		return x.challenge(action, catalog, "invalid_token", "the token is wrong, or too old")
	case bad == nil && (catalog && !g.Catalog || action != "" && !g.may(action, x.repository)):
		return x.challenge(action, catalog, "insufficient_scope", "the token is not for this")
	}
	x.grant = g
	return nil
}

// isToken compares with the token of HandlerOptions.
func (h *handler) isToken(token string) bool {
	hash := sha256.Sum256([]byte(token))
	return h.opts.TokenHash != [sha256.Size]byte{} && subtle.ConstantTimeCompare(hash[:], h.opts.TokenHash[:]) == 1
}

// challenge says how to log in: with a token that is asked for, or at once with Basic.
func (x *exchange) challenge(action string, catalog bool, why, message string) error {
	bearer := fmt.Sprintf("Bearer realm=%q,service=%q", x.base()+"/v2/token", tokenService)
	switch {
	case catalog:
		bearer += fmt.Sprintf(",scope=%q", catalogScope)
	case action == actionPush || action == actionDelete:
		bearer += fmt.Sprintf(",scope=%q", "repository:"+x.repository+":"+actionPull+","+action)
	case action != "":
		bearer += fmt.Sprintf(",scope=%q", "repository:"+x.repository+":"+action)
	}
	if why != "" {
		bearer += fmt.Sprintf(",error=%q", why)
	}
	x.w.Header()["Www-Authenticate"] = []string{bearer, basicChallenge}
	return &apiError{http.StatusUnauthorized, codeUnauthorized, message}
}

const basicChallenge = `Basic realm="otters registry", charset="UTF-8"`

// base is the address that the caller came to.
func (x *exchange) base() string {
	u := url.URL{Scheme: "http", Host: x.r.Host}
	if x.r.TLS != nil {
		u.Scheme = "https"
	}
	return u.String()
}

// presentedToken is what the request brings, and in which scheme, lower case; none is "".
func presentedToken(r *http.Request) (scheme, token string) {
	header := r.Header.Get("Authorization")
	if header == "" {
		return "", ""
	}
	if _, password, ok := r.BasicAuth(); ok {
		return "basic", password
	}
	scheme, token, _ = strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "other", ""
	}
	return "bearer", strings.TrimSpace(token)
}

// giveToken answers whoever asks for a token by GET with Basic, or by POST as OAuth 2 has it.
func (x *exchange) giveToken() error {
	// What is asked for is no URL to remember.
	x.w.Header().Set("Cache-Control", "no-store")
	form := x.r.URL.Query()
	scheme, token := presentedToken(x.r)
	if x.r.Method == http.MethodPost {
		var err error
		if form, err = x.tokenForm(); err != nil {
			return err
		}
		if grantType := form.Get("grant_type"); grantType != "password" {
			return &apiError{http.StatusBadRequest, codeUnsupported, "grant_type " + abbreviate(grantType) + " is not password"}
		}
		scheme, token = "basic", form.Get("password")
	}
	known := scheme == "basic" && x.isToken(token)
	if !known && !(scheme == "" && x.opts.AnonymousPull) {
		x.w.Header().Set("Www-Authenticate", basicChallenge)
		return &apiError{http.StatusUnauthorized, codeUnauthorized, "the token is wrong: send the registry's as the password of Basic, with any user name"}
	}
	now := x.store.opts.Now()
	g, err := parseScopes(form["scope"], known)
	if err != nil {
		return err
	}
	g.Expires = now.Add(tokenLife).Unix()
	issued, err := x.sealToken(g)
	if err != nil {
		return err
	}
	return x.replyJSON("application/json", map[string]any{
		"token": issued, "access_token": issued, "token_type": "Bearer",
		"expires_in": int(tokenLife / time.Second), "issued_at": now.UTC().Format(time.RFC3339),
	})
}

func (x *exchange) tokenForm() (url.Values, error) {
	bad := func(why string) error { return &apiError{http.StatusBadRequest, codeUnsupported, why} }
	if kind, _, err := mime.ParseMediaType(x.r.Header.Get("Content-Type")); err != nil || kind != "application/x-www-form-urlencoded" {
		return nil, bad("the body is no form")
	}
	text, err := x.readBounded(maxTokenForm)
	if err != nil {
		return nil, err
	}
	form, err := url.ParseQuery(string(text))
	if err != nil {
		return nil, bad("the body is no form")
	}
	return form, nil
}

// parseScopes reads "type:name:action,action" words. What is not known is not granted, and to those
// without the registry's token nothing but pull.
func parseScopes(given []string, known bool) (*grant, error) {
	g := &grant{Repositories: map[string][]string{}}
	n := 0
	for _, words := range given {
		for scope := range strings.FieldsSeq(words) {
			if n++; n > maxScopes {
				return nil, &apiError{http.StatusBadRequest, codeUnsupported, fmt.Sprintf("more than %d scopes", maxScopes)}
			}
			kind, rest, _ := strings.Cut(scope, ":")
			at := strings.LastIndexByte(rest, ':')
			if at < 0 {
				continue
			}
			name, actions := rest[:at], strings.Split(rest[at+1:], ",")
			switch {
			case scope == catalogScope:
				g.Catalog = known
			case kind == "repository" && checkName(name) == nil:
				for _, a := range actions {
					allowed := a == actionPull || known && (a == actionPush || a == actionDelete || a == actionAll)
					if allowed && !slices.Contains(g.Repositories[name], a) {
						g.Repositories[name] = append(g.Repositories[name], a)
					}
				}
			}
		}
	}
	return g, nil
}

// sealToken writes a grant that this handler, and no other, knows again.
func (h *handler) sealToken(g *grant) (string, error) {
	text, err := json.Marshal(g)
	if err != nil {
		return "", err
	}
	enc := base64.RawURLEncoding
	return enc.EncodeToString(text) + "." + enc.EncodeToString(h.sum(text)), nil
}

func (h *handler) sum(text []byte) []byte {
	m := hmac.New(sha256.New, h.key[:])
	m.Write(text)
	return m.Sum(nil)
}

// openToken reads a grant that has not ended.
func (h *handler) openToken(scheme, token string) (*grant, bool) {
	first, second, ok := strings.Cut(token, ".")
	if scheme != "bearer" || !ok || len(token) > maxToken {
		return nil, false
	}
	enc := base64.RawURLEncoding
	text, err := enc.DecodeString(first)
	if err != nil {
		return nil, false
	}
	sum, err := enc.DecodeString(second)
	if err != nil || !hmac.Equal(sum, h.sum(text)) {
		return nil, false
	}
	g := &grant{}
	dec := json.NewDecoder(bytes.NewReader(text))
	if dec.Decode(g) != nil || g.Expires <= h.store.opts.Now().Unix() {
		return nil, false
	}
	return g, true
}

func newTokenKey() (key [32]byte) {
	_, _ = rand.Read(key[:]) // it never fails
	return key
}

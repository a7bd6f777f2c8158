package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	otherregistry "github.com/google/go-containerregistry/pkg/registry"
)

// Invariant: images come and go through the proxy and with the certificates and credentials of the
// environment that the daemon was started in, and of no other.

// behindProxy is a registry of another project with a certificate of an authority of its own, which is
// reached by its name through a proxy alone.
type behindProxy struct {
	host, proxy, authority string
	tunnels                atomic.Int32
}

func newBehindProxy(t *testing.T) *behindProxy {
	t.Helper()
	b := &behindProxy{host: "registry.example"}
	inner := otherregistry.New(otherregistry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "otter" || password != "secret-fish" {
			w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{b.certificate(t)}}
	server.StartTLS()
	t.Cleanup(server.Close)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect || r.Host != b.host+":443" {
			http.Error(w, "no way", http.StatusForbidden)
			return
		}
		b.tunnels.Add(1)
		tunnel(t, w, server.Listener.Addr().String())
	}))
	t.Cleanup(proxy.Close)
	b.proxy = proxy.URL
	return b
}

// tunnel joins the caller's connection with one to an address until either ends.
func tunnel(t *testing.T, w http.ResponseWriter, address string) {
	there, err := net.Dial("tcp", address)
	if err != nil {
		t.Error(err)
		return
	}
	defer there.Close()
	w.WriteHeader(http.StatusOK)
	here, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		t.Error(err)
		return
	}
	defer here.Close()
	ended := make(chan struct{}, 2)
	pass := func(dst io.Writer, src io.Reader) {
		_, _ = io.Copy(dst, src)
		ended <- struct{}{}
	}
	go pass(there, buffered)
	go pass(here, there)
	<-ended
	_ = here.Close()
	_ = there.Close()
	<-ended
}

// certificate makes an authority, whose file it names, and the registry's certificate.
func (b *behindProxy) certificate(t *testing.T) tls.Certificate {
	t.Helper()
	issue := func(of *x509.Certificate, by *x509.Certificate, key, sign *ecdsa.PrivateKey) []byte {
		of.NotBefore, of.NotAfter, of.BasicConstraintsValid = time.Now().Add(-time.Hour), time.Now().Add(time.Hour), true
		der, err := x509.CreateCertificate(rand.Reader, of, by, &key.PublicKey, sign)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	key := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	caKey, ownKey := key(), key()
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, KeyUsage: x509.KeyUsageCertSign}
	caDER := issue(ca, ca, caKey, caKey)
	own := &x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: []string{b.host}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	ownDER := issue(own, ca, ownKey, caKey)
	b.authority = filepath.Join(t.TempDir(), "ca.pem")
	writeFile(t, b.authority, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER})))
	return tls.Certificate{Certificate: [][]byte{ownDER}, PrivateKey: ownKey}
}

func TestProxyAuthorityAndCredentialsOfTheDaemonsEnvironment(t *testing.T) {
	t.Parallel()
	b := newBehindProxy(t)
	m := newHome(t)
	helpers := t.TempDir()
	writeProgram(t, filepath.Join(helpers, "docker-credential-otters"),
		"#!/bin/sh\nread host\necho \"{\\\"ServerURL\\\":\\\"$host\\\",\\\"Username\\\":\\\"otter\\\",\\\"Secret\\\":\\\"secret-fish\\\"}\"\n", 0o700)
	config := t.TempDir()
	writeFile(t, filepath.Join(config, "config.json"), `{"credHelpers":{"`+b.host+`":"otters"}}`)
	whole := []string{"HTTPS_PROXY=" + b.proxy, "SSL_CERT_FILE=" + b.authority, "DOCKER_CONFIG=" + config, "PATH=" + helpers + ":" + os.Getenv("PATH")}
	there := b.host + "/team/guide:1"

	// One thing is missing each time, and the error says which.
	for _, c := range []struct {
		env  []string
		says []string
	}{
		{[]string{whole[0], whole[2], whole[3]}, []string{"certificate", "SSL_CERT_FILE"}},
		{[]string{whole[0], whole[1]}, []string{"log in to " + b.host}},
		{append([]string{"HTTPS_PROXY=http://127.0.0.1:1"}, whole[1:]...), []string{"127.0.0.1:1: connect"}},
	} {
		m.env = c.env
		m.must("daemon", "start")
		m.must("build", "-t", "guide:1", guide(t))
		for _, says := range c.says {
			m.refused(says, "image", "push", "guide:1", there)
		}
		m.must("daemon", "stop")
	}

	m.env = whole
	m.must("daemon", "start")
	// What the command line's own environment says does not count: it is the daemon that speaks.
	m.env = nil
	b.tunnels.Store(0)
	digest := m.digest("guide:1")
	if got := m.must("image", "push", "guide:1", there); got.out != there+" "+digest+"\n" {
		t.Errorf("%+v", got)
	}
	m.must("image", "rm", "guide:1")
	m.must("run", "--name", "far", there)
	if a := m.inspect("far"); a.Image != there || a.Digest != digest {
		t.Errorf("%+v", a)
	}
	if got := m.must("prompt", "far", "What is a holt?"); !strings.Contains(got.out+got.err, "den of an otter") {
		t.Errorf("%+v", got)
	}
	if b.tunnels.Load() == 0 {
		t.Error("nothing went through the proxy")
	}
	m.must("daemon", "stop", "--stop-agents")
}

package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"github.com/otters-sh/otters/spec"
)

// reopenings is how often one blob is gone on with after its connection broke.
const reopenings = 5

// upstreamOf is what is known of the registry at a host.
func (r *imageRegistry) upstreamOf(host string) *upstream {
	if u := r.upstreams[host]; u != nil {
		return u
	}
	return otherRegistry(host)
}

// remote opens a repository of another registry with the credentials of DOCKER_CONFIG, which are read
// at every call. The caller closes it.
func (r *imageRegistry) remote(ref spec.Reference) (*remote.Repository, func(), error) {
	if ref.Host() == "" {
		return nil, nil, fail(codes.InvalidArgument, "write host/"+ref.String(), "%s: names no other registry", ref)
	}
	repo, err := remote.NewRepository(ref.Name)
	if err != nil {
		return nil, nil, &failure{code: codes.InvalidArgument, err: err}
	}
	store, err := credentials.NewStoreFromDocker(credentials.StoreOptions{})
	if err != nil {
		return nil, nil, fail(codes.FailedPrecondition, "correct config.json in DOCKER_CONFIG, or in ~/.docker without one", "%s: credentials: %w", ref, err)
	}
	c := newUpstreamClient(r.upstreamOf(ref.Host()), r.stall)
	repo.PlainHTTP = c.plainHTTP
	repo.SkipReferrersGC = true
	repo.Client = c.client(credentials.Credential(store))
	return repo, c.close, nil
}

// remoteError gives an error of another registry a code and what to do.
func remoteError(ctx context.Context, verb string, ref spec.Reference, err error) error {
	var known *failure
	var answer *errcode.ErrorResponse
	var network net.Error
	var untrusted *tls.CertificateVerificationError
	what := fmt.Errorf("%s %s: %w", verb, ref, err)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &known):
		return err
	case errors.As(err, &answer) && (answer.StatusCode == http.StatusUnauthorized || answer.StatusCode == http.StatusForbidden), errors.Is(err, auth.ErrBasicCredentialNotFound):
		return &failure{code: codes.PermissionDenied, err: what, hint: "log in to " + ref.Host() + ", so that config.json in DOCKER_CONFIG, or in ~/.docker without one, has credentials that may; ottersd reads it as its own user"}
	case errors.Is(err, errdef.ErrNotFound), answer != nil && answer.StatusCode == http.StatusNotFound:
		return &failure{code: codes.NotFound, err: what}
	case errors.As(err, &untrusted):
		return &failure{code: codes.FailedPrecondition, err: what, hint: "name a file with its authority: in SSL_CERT_FILE when ottersd is started, or as ca-file of this registry in upstreams of config.yaml"}
	case errors.Is(err, errRefused):
		return &failure{code: codes.FailedPrecondition, err: what}
	case errors.As(err, &network), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, errStalled):
		return &failure{code: codes.Unavailable, err: what, hint: "run it again; what has arrived is kept"}
	}
	return &failure{code: codes.FailedPrecondition, err: what}
}

// transient tells that another try may go well.
func transient(err error) bool {
	var answer *errcode.ErrorResponse
	var network net.Error
	var untrusted *tls.CertificateVerificationError
	if errors.Is(err, errRefused) || errors.As(err, &untrusted) {
		return false
	}
	if errors.As(err, &answer) {
		return answer.StatusCode >= 500 || answer.StatusCode == http.StatusTooManyRequests
	}
	return errors.As(err, &network) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || errors.Is(err, errStalled)
}

// resumer reads a blob of another registry. It asks for it at the first read, and goes on where it
// was after a connection broke. Whether the bytes are right, the reader checks.
type resumer struct {
	ctx   context.Context // of one open blob
	fetch func(context.Context, ocispec.Descriptor) (io.ReadCloser, error)
	desc  ocispec.Descriptor

	body   io.ReadCloser
	cancel context.CancelFunc
	at     int64
	tries  int
}

func (r *resumer) Read(p []byte) (int, error) {
	for {
		n, err := r.read(p)
		r.at += int64(n)
		if n > 0 || err == nil || errors.Is(err, io.EOF) && r.at >= r.desc.Size {
			return n, err
		}
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		r.drop()
		if r.tries++; r.tries > reopenings || r.ctx.Err() != nil || !transient(err) {
			return 0, err
		}
		select {
		case <-time.After(time.Duration(r.tries) * 100 * time.Millisecond):
		case <-r.ctx.Done():
			return 0, r.ctx.Err()
		}
	}
}

func (r *resumer) read(p []byte) (int, error) {
	if r.body == nil {
		if err := r.open(); err != nil {
			return 0, err
		}
	}
	n, err := r.body.Read(p)
	if err != nil && !errors.Is(err, io.EOF) && n > 0 {
		// The bytes count; the next read meets the error again.
		err = nil
	}
	return n, err
}

func (r *resumer) open() error {
	ctx, cancel := context.WithCancel(r.ctx)
	body, err := r.fetch(ctx, r.desc)
	if err != nil {
		cancel()
		return err
	}
	r.body, r.cancel = body, cancel
	if r.at == 0 {
		return nil
	}
	if s, ok := body.(io.Seeker); ok {
		if _, err = s.Seek(r.at, io.SeekStart); err == nil {
			return nil
		}
	} else if _, err = io.CopyN(io.Discard, body, r.at); err == nil {
		return nil
	}
	r.drop()
	return err
}

func (r *resumer) drop() {
	if r.body != nil {
		r.cancel()
		_ = r.body.Close()
	}
	r.body = nil
}

func (r *resumer) Close() error {
	r.drop()
	return nil
}

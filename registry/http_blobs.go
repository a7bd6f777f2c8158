package registry

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"time"

	"github.com/opencontainers/go-digest"
	"oras.land/oras-go/v2/errdef"
)

// noTime leaves out Last-Modified: content never changes.
var noTime time.Time

// sizeOnly stands for the content of an answer to HEAD: it has a size and no bytes.
type sizeOnly int64

func (sizeOnly) Read([]byte) (int, error) { return 0, io.EOF }

// Seek is asked for the end only.
func (s sizeOnly) Seek(offset int64, whence int) (int64, error) {
	if whence == io.SeekEnd {
		return int64(s) + offset, nil
	}
	return offset, nil
}

func (x *exchange) getBlob() error {
	d := digest.Digest(x.reference)
	if err := checkDigest(d); err != nil {
		return err
	}
	f, err := x.find(findBlob, x.repository, string(d))
	if err != nil {
		return unknown(fmt.Errorf("blob %s in %s: %w", d, x.repository, err), codeBlobUnknown)
	}
	return x.send(f, "application/octet-stream")
}

// find looks up what GET reads, or HEAD asks for.
func (x *exchange) find(query string, args ...any) (*found, error) {
	if x.r.Method == http.MethodGet {
		return x.store.find(x.r.Context(), query, true, args...)
	}
	return x.store.findPresent(x.r.Context(), query, args...)
}

func (x *exchange) deleteBlob() error {
	d := digest.Digest(x.reference)
	if err := checkDigest(d); err != nil {
		return err
	}
	if err := x.target().remove(x.r.Context(), d, false); err != nil {
		return unknown(fmt.Errorf("delete %s in %s: %w", d, x.repository, err), codeBlobUnknown)
	}
	x.replyEmpty(http.StatusAccepted)
	return nil
}

// startUpload mounts, takes a whole blob, or opens a session, as the query says.
func (x *exchange) startUpload() error {
	query := x.r.URL.Query()
	if query.Has("mount") {
		mounted, err := x.mount(digest.Digest(query.Get("mount")), query.Get("from"))
		if mounted || err != nil {
			return err
		}
	} else if query.Has("digest") {
		return x.putWhole(digest.Digest(query.Get("digest")))
	}
	algorithm := digest.SHA256
	if name := query.Get("digest-algorithm"); name != "" {
		algorithm = digest.Algorithm(name)
		if algorithm != digest.SHA256 && algorithm != digest.SHA512 {
			return fmt.Errorf("digest algorithm %q: sha256 and sha512 are supported: %w", abbreviate(name), errdef.ErrInvalidDigest)
		}
	}
	u, err := x.store.uploads.start(x.store, x.repository, algorithm)
	if err != nil {
		return err
	}
	defer x.store.uploads.release(u)
	x.progress(u, http.StatusAccepted)
	return nil
}

// mount makes a blob of another repository visible in this one. Where that is impossible, an
// upload begins instead, as the specification has it.
func (x *exchange) mount(d digest.Digest, from string) (bool, error) {
	if err := checkDigest(d); err != nil {
		return false, err
	}
	if from == "" {
		return false, nil
	}
	if err := checkName(from); err != nil {
		return false, err
	}
	if !x.grant.may(actionPull, from) {
		return false, nil
	}
	_, err := x.store.findPresent(x.r.Context(), findBlob, from, string(d))
	if err == nil {
		err = x.store.write(x.r.Context(), 0, func(w *writer) error { return w.mount(d, from, x.repository, x.store.leases) })
	}
	if errors.Is(err, errdef.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	x.created("blobs", d)
	return true, nil
}

// putWhole takes a blob in a single POST.
func (x *exchange) putWhole(d digest.Digest) error {
	if err := checkDigest(d); err != nil {
		return err
	}
	return x.complete(x.store.newIngest(d.Algorithm()), d)
}

// complete takes what the body has left of a blob and stores it.
func (x *exchange) complete(g *ingest, d digest.Digest) error {
	err := g.readFrom(x.body())
	if err == nil {
		err = g.finish(d)
	}
	if err != nil {
		g.discard()
		return err
	}
	if err := x.store.commitBlob(x.r.Context(), g, d, x.repository); err != nil {
		return err
	}
	x.created("blobs", d)
	return nil
}

// progress answers with a session's place and how far it has come.
func (x *exchange) progress(u *session, status int) {
	x.setProgress(u)
	x.replyEmpty(status)
}

func (x *exchange) setProgress(u *session) {
	header := x.w.Header()
	header.Set("Location", "/v2/"+x.repository+"/blobs/uploads/"+u.id)
	header.Set("Docker-Upload-Uuid", u.id)
	header.Set("Range", "0-"+strconv.FormatInt(max(u.blob.size-1, 0), 10))
}

func (x *exchange) uploadStatus() error {
	u, err := x.store.uploads.acquire(x.repository, x.reference)
	if err != nil {
		return err
	}
	defer x.store.uploads.release(u)
	x.progress(u, http.StatusNoContent)
	return nil
}

func (x *exchange) cancelUpload() error {
	u, err := x.store.uploads.acquire(x.repository, x.reference)
	if err != nil {
		return err
	}
	x.store.uploads.end(u)
	u.blob.discard()
	x.replyEmpty(http.StatusNoContent)
	return nil
}

// patchUpload adds a chunk, or a stream of unknown length. After a body that broke off, what came
// of it stays, and the status tells how much that is.
func (x *exchange) patchUpload() error {
	u, err := x.store.uploads.acquire(x.repository, x.reference)
	if err != nil {
		return err
	}
	if err := x.checkChunk(u); err != nil {
		x.store.uploads.release(u)
		return err
	}
	err = u.blob.readFrom(x.body())
	var sent *bodyError
	if err != nil && !errors.As(err, &sent) {
		x.store.uploads.end(u)
		u.blob.discard()
		return err
	}
	defer x.store.uploads.release(u)
	if err != nil {
		return err
	}
	x.progress(u, http.StatusAccepted)
	return nil
}

// putUpload adds the last chunk, if any, and closes the session. Whatever is wrong with the
// content ends it; a chunk out of order does not.
func (x *exchange) putUpload() error {
	d := digest.Digest(x.r.URL.Query().Get("digest"))
	if err := checkDigest(d); err != nil {
		return err
	}
	u, err := x.store.uploads.acquire(x.repository, x.reference)
	if err != nil {
		return err
	}
	if err := x.checkChunk(u); err != nil {
		x.store.uploads.release(u)
		return err
	}
	x.store.uploads.end(u)
	if u.blob.size == 0 {
		return x.complete(x.store.newIngest(d.Algorithm()), d)
	}
	return x.complete(u.blob, d)
}

var chunkPattern = regexp.MustCompile(`^([0-9]{1,18})-([0-9]{1,18})$`)

// checkChunk compares Content-Range, if sent, with the session and with the length of the body.
func (x *exchange) checkChunk(u *session) error {
	text := x.r.Header.Get("Content-Range")
	if text == "" {
		return nil
	}
	refuse := func(why string) error {
		x.setProgress(u)
		return &apiError{http.StatusRequestedRangeNotSatisfiable, codeUploadInvalid, fmt.Sprintf("content range %q: %s", abbreviate(text), why)}
	}
	parts := chunkPattern.FindStringSubmatch(text)
	if parts == nil {
		return refuse("want first-last, both inclusive")
	}
	first, errFirst := strconv.ParseInt(parts[1], 10, 64)
	last, errLast := strconv.ParseInt(parts[2], 10, 64)
	if err := errors.Join(errFirst, errLast); err != nil {
		return err
	}
	if first != u.blob.size {
		return refuse(fmt.Sprintf("the next byte is %d", u.blob.size))
	}
	if x.r.ContentLength < 0 {
		return &apiError{http.StatusLengthRequired, codeSizeInvalid, "a chunk with Content-Range needs Content-Length"}
	}
	if last-first+1 != x.r.ContentLength {
		return &apiError{http.StatusBadRequest, codeSizeInvalid, fmt.Sprintf("content range %q does not have the %d bytes of the body", text, x.r.ContentLength)}
	}
	return nil
}

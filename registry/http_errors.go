package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
	"oras.land/oras-go/v2/errdef"
)

// Error codes of distribution-spec 1.1, "Error codes".
const (
	codeBlobUnknown         = "BLOB_UNKNOWN"
	codeUploadInvalid       = "BLOB_UPLOAD_INVALID"
	codeUploadUnknown       = "BLOB_UPLOAD_UNKNOWN"
	codeDigestInvalid       = "DIGEST_INVALID"
	codeManifestBlobUnknown = "MANIFEST_BLOB_UNKNOWN"
	codeManifestInvalid     = "MANIFEST_INVALID"
	codeManifestUnknown     = "MANIFEST_UNKNOWN"
	codeNameInvalid         = "NAME_INVALID"
	codeNameUnknown         = "NAME_UNKNOWN"
	codeSizeInvalid         = "SIZE_INVALID"
	codeUnauthorized        = "UNAUTHORIZED"
	codeDenied              = "DENIED"
	codeUnsupported         = "UNSUPPORTED"
	codeTooMany             = "TOOMANYREQUESTS"

	// codeUnknown and codeUnavailable go with answers of class 5xx, of which the specification says
	// nothing.
	codeUnknown     = "UNKNOWN"
	codeUnavailable = "UNAVAILABLE"
)

// apiError is an answer that says what is wrong.
type apiError struct {
	status  int
	code    string
	message string
}

func (e *apiError) Error() string { return e.code + ": " + e.message }

var (
	errNoRoute        = &apiError{http.StatusNotFound, codeUnsupported, "no such endpoint: the API is that of the OCI distribution specification, below /v2/"}
	errNoUpload       = &apiError{http.StatusNotFound, codeUploadUnknown, "no such upload in this repository: it ended, rested too long or never was; start a new one"}
	errUploadBusy     = &apiError{http.StatusConflict, codeUploadInvalid, "another request is writing to this upload"}
	errTooManyUploads = &apiError{http.StatusTooManyRequests, codeTooMany, "too many uploads are open: finish or cancel one, or try again later"}
)

// unknown gives what isn't found the code of its kind.
func unknown(err error, code string) error {
	var missing *missingError
	if errors.As(err, &missing) || !errors.Is(err, errdef.ErrNotFound) {
		return err
	}
	return &apiError{http.StatusNotFound, code, err.Error()}
}

// answer finds the answer that goes with err. Causes that are ours are not told to the caller.
func answer(err error) *apiError {
	var api *apiError
	if errors.As(err, &api) {
		return api
	}
	var sent *bodyError
	var missing *missingError
	switch {
	case errors.As(err, &sent) && errors.Is(err, os.ErrDeadlineExceeded):
		return &apiError{http.StatusRequestTimeout, codeUploadInvalid, "the body came too slowly"}
	case errors.As(err, &sent):
		return &apiError{http.StatusBadRequest, codeSizeInvalid, "the body ended before its length was reached"}
	case errors.As(err, &missing):
		return &apiError{http.StatusNotFound, codeManifestBlobUnknown, err.Error()}
	case errors.Is(err, errManifest):
		return &apiError{http.StatusBadRequest, codeManifestInvalid, err.Error()}
	case errors.Is(err, errdef.ErrInvalidDigest):
		return &apiError{http.StatusBadRequest, codeDigestInvalid, err.Error()}
	case errors.Is(err, errdef.ErrInvalidReference):
		return &apiError{http.StatusBadRequest, codeNameInvalid, err.Error()}
	case errors.Is(err, errdef.ErrSizeExceedsLimit):
		return &apiError{http.StatusRequestEntityTooLarge, codeSizeInvalid, err.Error()}
	case errors.Is(err, ErrInUse):
		return &apiError{http.StatusMethodNotAllowed, codeDenied, err.Error()}
	case errors.Is(err, ErrClosed):
		return &apiError{http.StatusServiceUnavailable, codeUnavailable, "the registry is shutting down"}
	case errors.Is(err, errDamaged):
		return &apiError{http.StatusInternalServerError, codeUnknown, "this content is damaged: push it again"}
	case diskFull(err):
		return &apiError{http.StatusInsufficientStorage, codeUnavailable, "the registry's disk is full: nothing was stored"}
	case diskReadOnly(err):
		return &apiError{http.StatusServiceUnavailable, codeUnavailable, "the registry's disk cannot be written: nothing was stored"}
	}
	return &apiError{http.StatusInternalServerError, codeUnknown, "the registry had an error of its own: its log says more"}
}

func diskFull(err error) bool {
	var db *sqlite.Error
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.As(err, &db) && db.Code()&0xff == sqlite3.SQLITE_FULL
}

func diskReadOnly(err error) bool {
	var db *sqlite.Error
	return errors.Is(err, unix.EROFS) || errors.As(err, &db) && db.Code()&0xff == sqlite3.SQLITE_READONLY
}

// fail answers with an error.
func (x *exchange) fail(err error) {
	a := answer(err)
	if a.status >= 500 && x.r.Context().Err() == nil {
		x.opts.Log.Error("registry request", "method", x.r.Method, "path", x.r.URL.Path, "status", a.status, "error", err)
	}
	var sent *bodyError
	if errors.As(err, &sent) {
		x.w.Header().Set("Connection", "close")
	}
	type entry struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	text, err := json.Marshal(map[string][]entry{"errors": {{Code: a.code, Message: a.message}}})
	if err != nil {
		text = []byte(fmt.Sprintf(`{"errors":[{"code":%q}]}`, a.code))
	}
	x.reply(a.status, "application/json", text)
}

// reply answers with a body made here.
func (x *exchange) reply(status int, contentType string, data []byte) {
	x.answerWithin(int64(len(data)))
	header := x.w.Header()
	header.Set("Content-Type", contentType)
	header.Set("Content-Length", strconv.Itoa(len(data)))
	x.w.WriteHeader(status)
	if x.r.Method != http.MethodHead {
		_, _ = x.w.Write(data) // a caller that went away needs no answer
	}
}

func (x *exchange) replyJSON(contentType string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	x.reply(http.StatusOK, contentType, data)
	return nil
}

// replyEmpty answers without a body.
func (x *exchange) replyEmpty(status int) {
	x.answerWithin(0)
	if status != http.StatusNoContent {
		x.w.Header().Set("Content-Length", "0")
	}
	x.w.WriteHeader(status)
}

// readBounded reads a body of at most limit bytes.
func (x *exchange) readBounded(limit int64) ([]byte, error) {
	tooLarge := fmt.Errorf("body is larger than the limit of %d bytes: %w", limit, errdef.ErrSizeExceedsLimit)
	if x.r.ContentLength > limit {
		return nil, tooLarge
	}
	data, err := io.ReadAll(io.LimitReader(x.body(), limit+1))
	if err == nil && int64(len(data)) > limit {
		err = tooLarge
	}
	return data, err
}

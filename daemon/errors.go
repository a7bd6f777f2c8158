package daemon

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/otters-sh/otters/executor"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// maxMessageBytes bounds the text of an error that goes to a client.
const maxMessageBytes = 16 << 10

// failure is an error with what the API says of it: a code, what a person can do, and details.
type failure struct {
	code    codes.Code
	err     error
	hint    string
	details []proto.Message
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// fail makes an error with a code; hint may be empty.
func fail(code codes.Code, hint, format string, args ...any) *failure {
	return &failure{code: code, hint: hint, err: fmt.Errorf(format, args...)}
}

// codeOf maps an error to its code: the one it was made with, or that of its sentinel.
func codeOf(err error) codes.Code {
	var f *failure
	switch {
	case errors.As(err, &f):
		return f.code
	case errors.As(err, new(*connect.Error)):
		return codes.Code(connect.CodeOf(err))
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	case errors.Is(err, executor.ErrRefNotFound), errors.Is(err, executor.ErrNoteNotFound):
		return codes.NotFound
	case errors.Is(err, executor.ErrNotImplemented):
		return codes.Unimplemented
	case diskFull(err):
		return codes.ResourceExhausted
	}
	// A runtime's or another layer's own status is passed on.
	if s, ok := status.FromError(err); ok {
		return s.Code()
	}
	return codes.Internal
}

// freeSpace is what a person can do about a full disk.
const freeSpace = "free some space on the disk of the daemon's home"

// diskFull tells whether it was for want of space that something could not be written.
func diskFull(err error) bool {
	var db *sqlite.Error
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.As(err, &db) && db.Code()&0xff == sqlite3.SQLITE_FULL
}

// toStatus is the one place where an error becomes an answer.
func toStatus(err error) *status.Status {
	if err == nil {
		return nil
	}
	msg := err.Error()
	// A bare status error prints its code too; only its message is for a person.
	var f *failure
	if !errors.As(err, &f) {
		if s, ok := status.FromError(err); ok && s.Code() != codes.Unknown {
			msg = s.Message()
		}
	}
	msg = strings.ToValidUTF8(msg, "\uFFFD")
	if len(msg) > maxMessageBytes {
		msg = strings.ToValidUTF8(msg[:maxMessageBytes], "") + " … (cut)"
	}
	st := status.New(codeOf(err), msg)
	var details []protoadapt.MessageV1
	if f == nil && diskFull(err) {
		f = fail(codes.ResourceExhausted, freeSpace, "%w", err)
	}
	if f != nil {
		if f.hint != "" {
			details = append(details, protoadapt.MessageV1Of(&daemonv1.Hint{Text: f.hint}))
		}
		for _, d := range f.details {
			details = append(details, protoadapt.MessageV1Of(d))
		}
	}
	if len(details) == 0 {
		return st
	}
	if with, err := st.WithDetails(details...); err == nil {
		return with
	}
	return st
}

// toConnect is toStatus for the HTTP/1.1 side.
func toConnect(err error) error {
	if err == nil {
		return nil
	}
	// What connect itself refused, such as a message that is too large, is an answer already.
	if own, ok := err.(*connect.Error); ok {
		return own
	}
	st := toStatus(err)
	out := connect.NewError(connect.Code(st.Code()), errors.New(st.Message()))
	for _, d := range st.Proto().GetDetails() {
		if detail, err := connect.NewErrorDetail(d); err == nil {
			out.AddDetail(detail)
		}
	}
	return out
}

// oneLine joins the lines of err, which libraries such as yaml print several of.
func oneLine(err error) error {
	if !strings.ContainsAny(err.Error(), "\r\n") {
		return err
	}
	return &flattened{err}
}

type flattened struct{ error }

func (f *flattened) Error() string { return flatten(f.error.Error()) }
func (f *flattened) Unwrap() error { return f.error }

// flatten makes one line of s.
func flatten(s string) string {
	lines := strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' })
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.ReplaceAll(strings.Join(lines, "; "), ":; ", ": ")
}

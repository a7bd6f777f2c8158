package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/otters-sh/otters/model"
)

// refusal is an answer of the gateway itself, in the words of OpenAI's errors. Its message is read
// by the agent, so it names neither paths nor addresses of the host.
type refusal struct {
	status              int
	kind, code, message string
}

func (f refusal) Error() string { return f.message }

func (f refusal) write(w http.ResponseWriter, says dialect) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(f.status)
	// The agent that hangs up has been told all there is to say.
	_, _ = w.Write(says.errorBody(f))
}

func badRequest(code, format string, args ...any) refusal {
	return refusal{http.StatusBadRequest, "invalid_request_error", code, fmt.Sprintf(format, args...)}
}

func tooLarge() refusal {
	return refusal{http.StatusRequestEntityTooLarge, "invalid_request_error", "body_too_large",
		fmt.Sprintf("body: more than %d bytes; shorten the conversation", maxBody)}
}

func asRefusal(err error) refusal {
	var f refusal
	if errors.As(err, &f) {
		return f
	}
	if errors.Is(err, context.Canceled) {
		return cutOff(err)
	}
	return refusal{http.StatusInternalServerError, "api_error", "internal", "gateway: it could not handle the call; ask the operator to look into the daemon's log"}
}

// cutOff tells why a call ended before its answer did.
func cutOff(why error) refusal {
	switch {
	case errors.Is(why, errSilent):
		return refusal{http.StatusGatewayTimeout, "api_error", "provider_silent", "model call: " + errSilent.Error() + "; try again"}
	case errors.Is(why, errRevoked):
		return refusal{http.StatusUnauthorized, "authentication_error", "invalid_api_key", "model call: " + errRevoked.Error() + "; start the agent again"}
	case errors.Is(why, errStopping), errors.Is(why, errUnserved):
		return refusal{http.StatusServiceUnavailable, "api_error", "gateway_stopping", "model call: the gateway is stopping; try again"}
	}
	return refusal{http.StatusServiceUnavailable, "api_error", "cancelled", "model call: it was cancelled; try again"}
}

// routeRefusal is an error of Providers.route without what an agent has no business to know.
func routeRefusal(ref model.Ref, err error) refusal {
	if errors.Is(err, ErrUnknownProvider) || errors.Is(err, ErrModelNotAllowed) {
		return refusal{http.StatusForbidden, "permission_error", "model_not_allowed",
			fmt.Sprintf("model %s: the operator's providers.yaml does not allow it now; ask the operator to add it there", ref)}
	}
	return refusal{http.StatusServiceUnavailable, "api_error", "providers_not_usable",
		fmt.Sprintf("model %s: the operator's providers.yaml is not usable now; ask the operator to look into the daemon's log", ref)}
}

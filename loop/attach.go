package loop

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// ImageModel is a Model whose client sends images. Whether the model takes them its provider says.
type ImageModel interface {
	Model
	// TakesImages tells whether parts of KindImage are sent; it always returns the same.
	TakesImages() bool
}

// TakesImages tells whether images can be sent to a model at all.
func TakesImages(m Model) bool {
	im, ok := m.(ImageModel)
	return ok && im.TakesImages()
}

const (
	// maxHistoryImages bounds what of the images of earlier turns goes along with a request, the newest
	// first, in bytes. With those of a prompt it stays below what providers and gateways take.
	maxHistoryImages = 10 << 20
	// imageTokens is about what an image costs with most models.
	imageTokens = 1000
)

// TextFile is a text that comes with a prompt; the model gets it with its name.
func TextFile(name, mediaType, text string) Part {
	return Part{Kind: KindFile, Name: name, MediaType: mediaType, Text: text}
}

// Image is an image that comes with a prompt.
func Image(name, mediaType string, data []byte) Part {
	return Part{Kind: KindImage, Name: name, MediaType: mediaType, Data: data}
}

// Attachments are the files and images of a message, such as a later Turn can take.
func (m Message) Attachments() []Part {
	var list []Part
	for _, p := range m.Parts {
		if p.Kind == KindFile || p.Kind == KindImage {
			list = append(list, p)
		}
	}
	return list
}

func hasImages(m Message) bool {
	for _, p := range m.Parts {
		if p.Kind == KindImage {
			return true
		}
	}
	return false
}

// plain writes a message for a model: files as text, and images that are not to be sent as a note.
func plain(m Message, budget *int) Message {
	if m.Role != RoleUser || len(m.Attachments()) == 0 {
		return m
	}
	parts := make([]Part, len(m.Parts))
	for i, p := range m.Parts {
		switch p.Kind {
		case KindFile:
			p = Part{Kind: KindText, Text: fmt.Sprintf("\n\n<file name=%q type=%q>\n%s\n</file>", p.Name, p.MediaType, strings.TrimSuffix(p.Text, "\n"))}
		case KindImage:
			if *budget -= len(p.Data); *budget < 0 {
				p = Part{Kind: KindText, Text: fmt.Sprintf("\n\n[the image %q was here]", p.Name)}
			}
		}
		parts[i] = p
	}
	m.Parts = parts
	return m
}

// plainHistory writes a history for a model, with at most so many bytes of images.
func plainHistory(history []Message, budget int) []Message {
	var out []Message
	for i := len(history) - 1; i >= 0; i-- {
		if len(history[i].Attachments()) == 0 {
			continue
		}
		if out == nil {
			out = append(out, history...)
		}
		out[i] = plain(history[i], &budget)
	}
	if out == nil {
		return history
	}
	return out
}

// refused tells whether a provider refused a request with one of statuses, and not for its length.
func refused(err error, statuses ...int) bool {
	var call *CallError
	return errors.As(err, &call) && !Overflowed(err) && slices.Contains(statuses, call.Status)
}

// sent is what a request of this step holds of the conversation.
func (r *run) sent() []Message {
	budget := maxHistoryImages
	if r.noImages || !TakesImages(r.cfg.Model) {
		budget = 0
	}
	history := plainHistory(r.turn.History, budget)
	messages := append(history[:len(history):len(history)], r.out.Messages...)
	if len(r.turn.Attachments) > 0 {
		all := len(r.turn.Attachments) * maxAnswerBytes
		messages[len(history)] = plain(messages[len(history)], &all)
	}
	return messages
}

// askPlain asks once more without the images of earlier turns where they may be why the model refused,
// and otherwise says that the prompt's may be.
func (r *run) askPlain(err error) (again bool, _ error) {
	if !refused(err, http.StatusBadRequest, http.StatusNotFound, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity) {
		return false, err
	}
	var call *CallError
	if hasImages(r.out.Messages[0]) && errors.As(err, &call) {
		told := *call
		told.Message += "; the prompt has images, which this model may not take"
		return false, &told
	}
	for _, m := range r.turn.History {
		if hasImages(m) && !r.noImages {
			r.noImages = true
			return true, err
		}
	}
	return false, err
}

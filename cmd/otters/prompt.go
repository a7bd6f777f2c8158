package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/spf13/cobra"

	"github.com/otters-sh/otters/client"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// maxPrompt bounds a prompt in bytes; the daemon takes up to 4 MiB.
const maxPrompt = 1 << 20

// promptFlags are what prompt can be told.
type promptFlags struct {
	session, schema, busy string
	attach                []string
	json, regenerate      bool
}

func (a *app) promptCommand() *cobra.Command {
	var f promptFlags
	cmd := &cobra.Command{
		Use:   "prompt [flags] AGENT [TEXT]",
		Short: "Send a prompt to an agent and print the answer as it comes",
		Long: `Send a prompt to an agent and print the answer as it comes.

Without TEXT, or where it is "-", the prompt is read from standard input, at most 1 MiB. The
answer's text goes to standard output; tool calls, results and times to standard error. Ctrl-C
cancels the turn. Succeeds only when the turn came to its end (reason "done").

With --json standard output gets an object a line for each event, of which no field is ever renamed
or removed: ` + strings.Join(jsonFields(reflect.TypeOf(eventJSON{})), ", ") + `.
The first has run_id and session_id; empty fields are left out.

With --schema the answer is one JSON object that fits the JSON Schema in FILE, without session and
tools. Attached files are text or images, where runtime and model take them; what a file is its content
says.`,
		Args:              between(1, 2),
		ValidArgsFunction: a.completeAgents,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(args); err != nil {
				return err
			}
			var text string
			if !f.regenerate {
				var err error
				if text, err = a.promptText(cmd.Context(), args[1:]); err != nil {
					return err
				}
			}
			if f.schema != "" {
				return a.promptObject(cmd.Context(), args[0], text, f.schema)
			}
			attached, err := attachments(f.attach)
			if err != nil {
				return err
			}
			req := &daemonv1.PromptRequest{Agent: args[0], SessionId: f.session, Text: text, Regenerate: f.regenerate, Attachments: attached, Busy: f.busy}
			return a.with(cmd.Context(), func(c *client.Client) error {
				t := &turn{text: a.out, notes: a.err, neutralise: a.outTerm, style: newStyle(a.errTerm), json: f.json}
				if err := t.play(cmd.Context(), c, req); err != nil {
					return err
				}
				return t.summary()
			})
		},
	}
	cmd.Flags().StringVar(&f.session, "session", "", "`id` of the session to go on with (default: a new one)")
	cmd.Flags().BoolVar(&f.json, "json", false, "print events as JSON, one a line")
	cmd.Flags().BoolVar(&f.regenerate, "regenerate", false, "answer the session's last prompt again; the answer there is stays as a branch")
	cmd.Flags().StringVar(&f.schema, "schema", "", "`path` of a JSON Schema that the answer fits")
	cmd.Flags().StringArrayVar(&f.attach, "attach", nil, "`path` of a file that goes along; may be given several times")
	cmd.Flags().StringVar(&f.busy, "busy", "", "`what` to do while the session is busy with another prompt, wait or refuse (default: wait)")
	_ = cmd.RegisterFlagCompletionFunc("busy", cobra.FixedCompletions([]string{"wait", "refuse"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// check refuses flags that do not go together.
func (f *promptFlags) check(args []string) error {
	switch {
	case f.busy != "" && f.busy != "wait" && f.busy != "refuse":
		return usagef("prompt: --busy %q: want wait or refuse", f.busy)
	case f.regenerate && f.session == "":
		return usagef("prompt: --regenerate needs the session whose last prompt is to be answered again; give it with --session")
	case f.regenerate && (len(args) > 1 || len(f.attach) > 0):
		return usagef("prompt: with --regenerate the last prompt is answered again; give no text and no --attach")
	case f.schema != "" && (f.session != "" || f.regenerate || len(f.attach) > 0 || f.json || f.busy != ""):
		return usagef("prompt: with --schema there are no session, events and attachments; give it alone")
	}
	return nil
}

// promptObject prints the object that a prompt with a schema brings.
func (a *app) promptObject(ctx context.Context, agent, text, path string) error {
	schema, err := readFile(path, maxSchema)
	if err != nil {
		return fmt.Errorf("prompt: schema: %w; name another file", err)
	}
	if !json.Valid(schema) {
		return fmt.Errorf("prompt: schema: %s is no JSON, or nests deeper than 10000 levels; name another file", path)
	}
	return a.with(ctx, func(c *client.Client) error {
		r, err := c.PromptObject(ctx, &daemonv1.PromptObjectRequest{Agent: agent, Text: text, Schema: schema})
		if err != nil {
			return err
		}
		return printJSON(a.out, json.RawMessage(r.GetObject()))
	})
}

// promptText is the prompt of the command line or of standard input.
func (a *app) promptText(ctx context.Context, args []string) (string, error) {
	text, err := a.text(ctx, args, "prompt", maxPrompt, "give less, or put it into a file of the workspace")
	if err == nil && strings.TrimSpace(text) == "" {
		return "", usagef("prompt: the text is empty; give it as the last argument or on standard input")
	}
	return text, err
}

// endings say what a person can do about a turn that did not come to its end.
var endings = map[string]string{
	"max_iterations": "ask for less at a time, or raise CONFIG max-iterations",
	"max_tokens":     "ask for less at a time, or raise CONFIG max-tokens",
	"timeout":        "ask for less at a time",
	"repeat":         "the model asked for the same again and again: word the prompt differently",
	"cancelled":      "send the prompt again",
	"denied":         "a call was refused: see what was said above",
	"budget":         "raise the budget, or wait for the next period",
	"model_error":    "see `otters logs`, and whether the model is reachable",
	"interrupted":    "the runtime ended during the turn: see `otters logs`",
}

// ended makes the error of a turn that ended for another reason than being done.
func ended(agent, reason, said string) error {
	why := "the turn ended early: " + reason
	if said != "" {
		why += ": " + said
	}
	if hint := endings[reason]; hint != "" {
		why += "; " + hint
	}
	return errors.New("prompt " + agent + ": " + why)
}

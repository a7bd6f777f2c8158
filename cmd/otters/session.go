package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/otters-sh/otters/client"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

func (a *app) sessionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "session",
		Short: "Work with what agents were asked and answered",
		Long: `Work with the sessions of agents: what they were asked, and answered.

"ls", "show" and "rm" work on agents that run and on stopped ones, "export" and "import" on stopped
ones alone. Sessions of a stopped agent are reached where its runtime can do that; the default one can.`,
		Args: cobra.ArbitraryArgs,
		RunE: helpOrUnknown,
	}
	cmd.AddCommand(a.sessionLsCommand(), a.sessionShowCommand(), a.sessionRmCommand(), a.sessionExportCommand(), a.sessionImportCommand())
	return cmd
}

// completeAgent completes the first argument of a command whose others are no agents.
func (a *app) completeAgent(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.completeAgents(cmd, args, typed)
}

type sessionJSON struct {
	ID         string `json:"id"`
	Messages   int32  `json:"messages"`
	LastActive string `json:"last_active"`
}

func (a *app) sessionLsCommand() *cobra.Command {
	var f format
	cmd := &cobra.Command{
		Use:               "ls AGENT",
		Short:             "List the sessions of an agent, the newest first",
		Long:              "List the sessions of an agent, the newest first, at most 10000." + jsonHelp("a list of objects", sessionJSON{}),
		Args:              exactly(1),
		ValidArgsFunction: a.completeAgent,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), func(c *client.Client) error {
				sessions, err := c.Sessions(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				if f == formatJSON {
					out := []sessionJSON{}
					for _, s := range sessions {
						out = append(out, sessionJSON{s.GetId(), s.GetMessages(), millis(s.GetLastActive() * 1000)})
					}
					return printJSON(a.out, out)
				}
				var rows [][]string
				for _, s := range sessions {
					rows = append(rows, []string{s.GetId(), strconv.Itoa(int(s.GetMessages())), age(time.Unix(s.GetLastActive(), 0), time.Now())})
				}
				return printTable(a.out, []string{"SESSION", "MESSAGES", "LAST ACTIVE"}, rows)
			})
		},
	}
	addFormat(cmd, &f)
	return cmd
}

// messagePart is a part of an answer, as the runtime contract has it.
type messagePart struct {
	Kind       string `json:"kind"`
	Text       string `json:"text,omitempty"`
	ID         string `json:"id,omitempty"`
	Tool       string `json:"tool,omitempty"`
	Args       string `json:"args,omitempty"`
	Result     string `json:"result,omitempty"`
	Failed     bool   `json:"failed,omitempty"`
	DurationMs int64  `json:"duration_ms,omitempty"`
	Incomplete bool   `json:"incomplete,omitempty"`
	Reason     string `json:"reason,omitempty"`
}

type messageJSON struct {
	Role      string `json:"role"`
	CreatedAt string `json:"created_at"`
	// Text is the message without tool calls; Parts are an answer with them.
	Text  string        `json:"text"`
	Parts []messagePart `json:"parts"`
	// Branches are all answers there were, empty where there was one; ActiveBranch is the one that
	// counts.
	Branches     [][]messagePart `json:"branches"`
	ActiveBranch int32           `json:"active_branch"`
}

func newMessageJSON(m *daemonv1.ShowSessionResponse) messageJSON {
	out := messageJSON{
		Role: m.GetRole(), CreatedAt: millis(m.GetCreatedAt() * 1000), Text: m.GetContent(),
		Parts: []messagePart{}, Branches: [][]messagePart{}, ActiveBranch: m.GetActiveBranch(),
	}
	if m.GetRole() == "user" {
		return out
	}
	// What is no list of parts is the text itself.
	if json.Unmarshal([]byte(m.GetContent()), &out.Parts) == nil {
		var text strings.Builder
		for _, p := range out.Parts {
			if p.Kind == "text" {
				text.WriteString(p.Text)
			}
		}
		out.Text = text.String()
	}
	if json.Unmarshal([]byte(m.GetBranchesJson()), &out.Branches) != nil || out.Branches == nil {
		out.Branches = [][]messagePart{}
	}
	if out.Parts == nil {
		out.Parts = []messagePart{}
	}
	return out
}

func (a *app) sessionShowCommand() *cobra.Command {
	var f format
	var limit int32
	cmd := &cobra.Command{
		Use:   "show [--limit N] AGENT SESSION",
		Short: "Print the messages of a session",
		Long: "Print the newest messages of a session, oldest first." +
			jsonHelp("a list of objects", messageJSON{}),
		Args:              exactly(2),
		ValidArgsFunction: a.completeAgent,
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 1 || limit > 1000 {
				return usagef("show: --limit %d: want 1 to 1000", limit)
			}
			return a.with(cmd.Context(), func(c *client.Client) error {
				list := []messageJSON{}
				for m, err := range c.Session(cmd.Context(), args[0], args[1], limit) {
					if err != nil {
						return err
					}
					if f == formatJSON {
						list = append(list, newMessageJSON(m))
					} else if err := a.printMessage(newMessageJSON(m)); err != nil {
						return err
					}
				}
				if f == formatJSON {
					return printJSON(a.out, list)
				}
				return nil
			})
		},
	}
	cmd.Flags().Int32Var(&limit, "limit", 100, "how many messages, `N` of the newest, 1 to 1000")
	addFormat(cmd, &f)
	return cmd
}

// printMessage prints a message for a person: who, when, and what, indented.
func (a *app) printMessage(m messageJSON) error {
	l := lines{w: a.out}
	more := ""
	if n := len(m.Branches); n > 1 {
		more = fmt.Sprintf(" (answer %d of %d)", m.ActiveBranch+1, n)
	}
	l.printf("%s  %s%s\n", neutral(m.Role, false), m.CreatedAt, more)
	if len(m.Parts) == 0 {
		l.printf("%s", indented(m.Text))
	}
	for _, p := range m.Parts {
		switch p.Kind {
		case "text":
			l.printf("%s", indented(p.Text))
		case "tool":
			l.printf("    → %s %s\n", excerpt(p.Tool, 80), excerpt(p.Args, shownWidth))
			if p.Result != "" || !p.Incomplete {
				l.printf("    ← %s (%s)%s\n", excerpt(p.Tool, 80), duration(p.DurationMs), strings.ReplaceAll(result(p.Result), "\n", "\n    "))
			}
		}
		if p.Reason != "" {
			l.printf("    ! ended early: %s\n", neutral(p.Reason, false))
		}
	}
	return l.err
}

// indented is text under its heading.
func indented(s string) string {
	s = strings.TrimRight(neutral(s, true), "\n")
	if s == "" {
		return ""
	}
	return "    " + strings.ReplaceAll(s, "\n", "\n    ") + "\n"
}

func (a *app) sessionRmCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "rm AGENT SESSION...",
		Short:             "Remove sessions of an agent",
		Long:              `Remove sessions of an agent, one after the other. A turn in progress is waited for.`,
		Args:              atLeast(2),
		ValidArgsFunction: a.completeAgent,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), func(c *client.Client) error {
				l := lines{w: a.out}
				for _, id := range args[1:] {
					if err := c.RemoveSession(cmd.Context(), args[0], id); err != nil {
						return err
					}
					l.printf("%s\n", neutral(id, false))
				}
				return l.err
			})
		},
	}
}

func (a *app) sessionExportCommand() *cobra.Command {
	var file string
	var notes bool
	cmd := &cobra.Command{
		Use:   "export [-o FILE] [--notes] AGENT [SESSION...]",
		Short: "Write sessions of a stopped agent as JSON lines",
		Long: `Write sessions of a stopped agent, with all their branches and summaries, as JSON lines that
"otters session import" reads; docs/runtime.md has the format. Without SESSION these are all it has,
without -o they go to standard output.`,
		Args:              atLeast(1),
		ValidArgsFunction: a.completeAgent,
		RunE: func(cmd *cobra.Command, args []string) error {
			if file == "" && a.outTerm {
				return usagef("export: standard output is a terminal; name a file with -o FILE")
			}
			req := &daemonv1.ExportSessionsRequest{Agent: args[0], SessionIds: args[1:], Notes: notes}
			return a.with(cmd.Context(), func(c *client.Client) error {
				if file == "" {
					return c.ExportSessions(cmd.Context(), a.out, req)
				}
				return writeWhole(file, func(f *os.File) error {
					// What was said is nobody else's to read.
					if err := f.Chmod(0o600); err != nil {
						return err
					}
					return c.ExportSessions(cmd.Context(), f, req)
				})
			})
		},
	}
	cmd.Flags().StringVarP(&file, "output", "o", "", "`path` of the export")
	cmd.Flags().BoolVar(&notes, "notes", false, "export the agent's notes as well")
	return cmd
}

type importJSON struct {
	Sessions  int64 `json:"sessions"`
	Turns     int64 `json:"turns"`
	Messages  int64 `json:"messages"`
	Summaries int64 `json:"summaries"`
	Notes     int64 `json:"notes"`
}

func (a *app) sessionImportCommand() *cobra.Command {
	var f format
	var file string
	var replace bool
	cmd := &cobra.Command{
		Use:   "import [-i FILE] [--replace] AGENT",
		Short: "Store exported sessions in a stopped agent",
		Long: `Store in a stopped agent what "otters session export" wrote: all of it, or nothing. Sessions and
notes that are there already are left alone, and the import is refused, unless --replace is given.
Without -i it is read from standard input.` + jsonHelp("what was stored", importJSON{}),
		Args:              exactly(1),
		ValidArgsFunction: a.completeAgent,
		RunE: func(cmd *cobra.Command, args []string) error {
			in, err := a.input(cmd.Context(), "import", file)
			if err != nil {
				return err
			}
			defer in.Close()
			return a.with(cmd.Context(), func(c *client.Client) error {
				r, err := c.ImportSessions(cmd.Context(), args[0], in, replace)
				if err != nil {
					return err
				}
				if f == formatJSON {
					return printJSON(a.out, importJSON{r.GetSessions(), r.GetTurns(), r.GetMessages(), r.GetSummaries(), r.GetNotes()})
				}
				return printTable(a.out, []string{"SESSIONS", "TURNS", "MESSAGES", "SUMMARIES", "NOTES"}, [][]string{{
					fmt.Sprint(r.GetSessions()), fmt.Sprint(r.GetTurns()), fmt.Sprint(r.GetMessages()), fmt.Sprint(r.GetSummaries()), fmt.Sprint(r.GetNotes()),
				}})
			})
		},
	}
	cmd.Flags().StringVarP(&file, "input", "i", "", "`path` of the export")
	cmd.Flags().BoolVar(&replace, "replace", false, "take the place of sessions and notes that are there already")
	addFormat(cmd, &f)
	return cmd
}

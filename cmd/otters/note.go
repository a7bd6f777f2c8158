package main

import (
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/otters-sh/otters/client"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// maxNote bounds a note in bytes; an agent's CONFIG may allow less.
const maxNote = 1 << 20

func (a *app) noteCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "note",
		Short: "Work with the facts that agents keep",
		Long: `Work with the notes of agents that run: facts that outlive sessions. A pinned one is part of what the
model gets with every prompt. A key has 1 to 64 letters a to z, digits, - and _.`,
		Args: cobra.ArbitraryArgs,
		RunE: helpOrUnknown,
	}
	cmd.AddCommand(a.noteLsCommand(), a.noteShowCommand(), a.noteSetCommand(), a.noteRmCommand(), a.notePinCommand())
	return cmd
}

type noteJSON struct {
	Key       string `json:"key"`
	Pinned    bool   `json:"pinned"`
	CreatedAt string `json:"created_at"`
	UpdatedAt string `json:"updated_at"`
	Preview   string `json:"preview"`
}

type wholeNoteJSON struct {
	noteJSON
	Content string `json:"content"`
}

func newNoteJSON(n *daemonv1.Note) noteJSON {
	return noteJSON{n.GetKey(), n.GetPinned(), millis(n.GetCreatedAt() * 1000), millis(n.GetUpdatedAt() * 1000), n.GetPreview()}
}

func (a *app) noteLsCommand() *cobra.Command {
	var f format
	var pinned bool
	cmd := &cobra.Command{
		Use:               "ls [--pinned] AGENT",
		Short:             "List the notes of an agent",
		Long:              "List the notes of an agent that runs, by key." + jsonHelp("a list of objects", noteJSON{}),
		Args:              exactly(1),
		ValidArgsFunction: a.completeAgent,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), func(c *client.Client) error {
				notes, err := c.Notes(cmd.Context(), args[0], pinned)
				if err != nil {
					return err
				}
				if f == formatJSON {
					out := []noteJSON{}
					for _, n := range notes {
						out = append(out, newNoteJSON(n))
					}
					return printJSON(a.out, out)
				}
				var rows [][]string
				for _, n := range notes {
					mark := ""
					if n.GetPinned() {
						mark = "pinned"
					}
					rows = append(rows, []string{n.GetKey(), mark, age(time.Unix(n.GetUpdatedAt(), 0), time.Now()), n.GetPreview()})
				}
				return printTable(a.out, []string{"KEY", "PINNED", "CHANGED", "CONTENT"}, rows)
			})
		},
	}
	cmd.Flags().BoolVar(&pinned, "pinned", false, "only those that are pinned")
	addFormat(cmd, &f)
	return cmd
}

func (a *app) noteShowCommand() *cobra.Command {
	var f format
	var file string
	cmd := &cobra.Command{
		Use:               "show [-o FILE] AGENT KEY",
		Short:             "Print a note",
		Long:              "Print the content of a note as it is, or write it to a file with -o." + jsonHelp("an object", wholeNoteJSON{}),
		Args:              exactly(2),
		ValidArgsFunction: a.completeAgent,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), func(c *client.Client) error {
				n, err := c.Note(cmd.Context(), args[0], args[1])
				if err != nil {
					return err
				}
				write := func(w io.Writer, text string) error {
					if f == formatJSON {
						return printJSON(w, wholeNoteJSON{newNoteJSON(n), n.GetContent()})
					}
					_, err := io.WriteString(w, text)
					return err
				}
				if file != "" {
					return writeWhole(file, func(f *os.File) error { return write(f, n.GetContent()) })
				}
				text := n.GetContent()
				if a.outTerm {
					text = strings.TrimRight(neutral(text, true), "\n") + "\n"
				}
				return write(a.out, text)
			})
		},
	}
	cmd.Flags().StringVarP(&file, "output", "o", "", "`path` of the file to write")
	addFormat(cmd, &f)
	return cmd
}

func (a *app) noteSetCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "set AGENT KEY [TEXT]",
		Short: "Write a note",
		Long: `Write a note, in place of one with that key. Without TEXT, or where it is "-", the content is read from
standard input as it is, at most 1 MiB; the agent's CONFIG notes-max-bytes-per may allow less.`,
		Args:              between(2, 3),
		ValidArgsFunction: a.completeAgent,
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := a.text(cmd.Context(), args[2:], "note", maxNote, "give less")
			if err != nil {
				return err
			}
			return a.with(cmd.Context(), func(c *client.Client) error {
				n, overwrote, err := c.SetNote(cmd.Context(), args[0], args[1], text)
				if err != nil {
					return err
				}
				did := "written"
				if overwrote {
					did = "overwritten"
				}
				l := lines{w: a.out}
				l.printf("%s %s\n", neutral(n.GetKey(), false), did)
				return l.err
			})
		},
	}
}

func (a *app) noteRmCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "rm AGENT KEY...",
		Short:             "Remove notes of an agent",
		Args:              atLeast(2),
		ValidArgsFunction: a.completeAgent,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.eachNote(cmd, args, func(c *client.Client, key string) (string, error) {
				return "removed", c.RemoveNote(cmd.Context(), args[0], key)
			})
		},
	}
}

func (a *app) notePinCommand() *cobra.Command {
	var off bool
	cmd := &cobra.Command{
		Use:               "pin [--off] AGENT KEY...",
		Short:             "Make notes part of what the model gets with every prompt",
		Args:              atLeast(2),
		ValidArgsFunction: a.completeAgent,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.eachNote(cmd, args, func(c *client.Client, key string) (string, error) {
				n, err := c.PinNote(cmd.Context(), args[0], key, !off)
				if n.GetPinned() {
					return "pinned", err
				}
				return "not pinned", err
			})
		},
	}
	cmd.Flags().BoolVar(&off, "off", false, "take them out again")
	return cmd
}

// eachNote does one thing with each note and says what became of it.
func (a *app) eachNote(cmd *cobra.Command, args []string, do func(*client.Client, string) (string, error)) error {
	return a.with(cmd.Context(), func(c *client.Client) error {
		l := lines{w: a.out}
		for _, key := range args[1:] {
			became, err := do(c, key)
			if err != nil {
				return err
			}
			l.printf("%s %s\n", neutral(key, false), became)
		}
		return l.err
	})
}

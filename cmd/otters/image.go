package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/otters-sh/otters/client"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
	"github.com/otters-sh/otters/spec"
)

func (a *app) imageCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "image",
		Short: "Work with images and Agentfiles",
		Args:  cobra.ArbitraryArgs,
		RunE:  helpOrUnknown,
	}
	list := a.imagesCommand()
	list.Use = "ls"
	cmd.AddCommand(
		list, a.imageInspectCommand("image"), a.imageHistoryCommand(), a.imageDiffCommand(),
		a.imageTagCommand(), a.imageRmCommand("image"), a.imagePruneCommand(), a.imageSaveCommand(), a.imageLoadCommand(),
		a.imagePushCommand("image"), a.imagePullCommand("image"), a.lintCommand(), a.fmtCommand(),
	)
	return cmd
}

// imageDetailJSON is what image inspect --format json prints.
type imageDetailJSON struct {
	imageJSON
	Annotations map[string]string `json:"annotations"`
	Parts       []partJSON        `json:"parts"`
	Platforms   []string          `json:"platforms"`
	Parents     []parentJSON      `json:"parents"`
	Definition  json.RawMessage   `json:"definition,omitempty"`
	Source      string            `json:"source,omitempty"`
	BinName     string            `json:"bin_name,omitempty"`
	Usage       string            `json:"usage,omitempty"`
}

type partJSON struct {
	Digest    string `json:"digest"`
	MediaType string `json:"media_type"`
	Title     string `json:"title"`
	Size      int64  `json:"size"`
}

type parentJSON struct {
	Name    string `json:"name"`
	Digest  string `json:"digest"`
	Present bool   `json:"present"`
}

func newImageDetailJSON(r *daemonv1.InspectImageResponse) imageDetailJSON {
	out := imageDetailJSON{
		imageJSON: newImageJSON(r.GetImage()), Annotations: r.GetAnnotations(), Parts: []partJSON{}, Parents: []parentJSON{},
		Platforms: notNil(r.GetPlatforms()), Source: r.GetSource(), BinName: r.GetBinName(), Usage: r.GetUsage(),
	}
	if out.Annotations == nil {
		out.Annotations = map[string]string{}
	}
	if r.GetDefinition() != "" {
		out.Definition = json.RawMessage(r.GetDefinition())
	}
	for _, p := range r.GetParts() {
		out.Parts = append(out.Parts, partJSON{p.GetDigest(), p.GetMediaType(), p.GetTitle(), p.GetSize()})
	}
	for _, p := range r.GetParents() {
		out.Parents = append(out.Parents, parentJSON{p.GetName(), p.GetDigest(), p.GetPresent()})
	}
	return out
}

func (a *app) imageInspectCommand(kind string) *cobra.Command {
	var f format
	cmd := &cobra.Command{
		Use:   "inspect " + strings.ToUpper(kind),
		Short: "Show everything about an image",
		Long:  "Show everything about an image in the daemon's registry." + jsonHelp("an object", imageDetailJSON{}),
		Args:  exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), func(c *client.Client) error {
				r, err := c.Image(cmd.Context(), args[0])
				switch {
				case err != nil:
					return err
				case kind == "bin" && r.GetImage().GetKind() != "bin":
					return notBin(args[0])
				case f == formatJSON:
					return printJSON(a.out, newImageDetailJSON(r))
				}
				if err := printPairs(a.out, describeImage(r)); err != nil || r.GetUsage() == "" {
					return err
				}
				l := lines{w: a.out}
				l.printf("\n%s\n", strings.TrimRight(neutral(r.GetUsage(), true), "\n"))
				return l.err
			})
		},
	}
	addFormat(cmd, &f)
	return cmd
}

func notBin(name string) error {
	return fmt.Errorf("%s: it is no BIN image; see `otters bin ls`", name)
}

func describeImage(r *daemonv1.InspectImageResponse) []pair {
	i := r.GetImage()
	out := []pair{
		{"image", i.GetReference()}, {"digest", i.GetDigest()}, {"kind", i.GetKind()}, {"size", size(i.GetSize())},
		{"media type", i.GetMediaType()},
	}
	if i.GetCreatedAt() != 0 {
		out = append(out, pair{"created", time.Unix(i.GetCreatedAt(), 0).UTC().Format(time.RFC3339)})
	}
	if r.GetBinName() != "" {
		out = append(out, pair{"tool", r.GetBinName()})
	}
	if i.GetDescription() != "" {
		out = append(out, pair{"description", i.GetDescription()})
	}
	out = append(out, list("platform", r.GetPlatforms())...)
	var words []string
	for _, p := range r.GetParents() {
		words = append(words, p.GetName()+" "+short(p.GetDigest()))
	}
	out = append(out, list("parent", words)...)
	words = nil
	for _, key := range slices.Sorted(maps.Keys(r.GetAnnotations())) {
		words = append(words, key+"="+excerpt(r.GetAnnotations()[key], 200))
	}
	out = append(out, list("annotation", words)...)
	words = nil
	for _, p := range r.GetParts() {
		words = append(words, strings.TrimSpace(short(p.GetDigest())+" "+size(p.GetSize())+" "+joined(p.GetTitle(), p.GetMediaType())))
	}
	out = append(out, list("part", words)...)
	if r.GetDefinition() != "" {
		var def spec.Agentfile
		if err := json.Unmarshal([]byte(r.GetDefinition()), &def); err == nil {
			out = append(out, list("definition", definition(&def))...)
		}
	}
	return out
}

// definition prints each element of a definition as one line, in the words of the language.
func definition(d *spec.Agentfile) []string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	one := func(keyword, value string) {
		if value != "" {
			add("%s %s", keyword, value)
		}
	}
	about := func(s string) string {
		if s == "" {
			return ""
		}
		return fmt.Sprintf(" %q", s)
	}
	one("RUNTIME", d.Runtime)
	one("MODEL", d.Model)
	one("NAME", d.Name)
	for _, c := range d.Contexts {
		add("CONTEXT %s%s: %s", c.Name, about(c.Description), summary(c.Content))
	}
	for _, c := range d.Configs {
		value := ""
		switch {
		case c.Value != nil:
			value = "=" + *c.Value
		case c.Required:
			value = "!"
		}
		add("CONFIG %s%s%s", c.Key, value, about(c.Description))
	}
	for _, e := range d.Envs {
		add("ENV %s=%s%s", e.Key, e.Value, about(e.Description))
	}
	for _, b := range d.Bins {
		add("BIN %s %s%s", b.Name, b.Image, about(b.Description))
		if b.Usage != "" {
			add("BIN %s usage: %s", b.Name, summary(b.Usage))
		}
	}
	if d.Exec != nil {
		add("EXEC %q", d.Exec)
	}
	for _, f := range d.Adds {
		add("ADD %s%s", f.Name, about(f.Description))
	}
	for _, p := range d.Labels {
		add("LABEL %s=%s", p.Key, p.Value)
	}
	for _, p := range d.Args {
		add("ARG %s=%s", p.Key, p.Value)
	}
	one("CAPABILITY", strings.Join(d.Capabilities, " "))
	return out
}

// summary tells one text from another in a line.
func summary(text string) string {
	return fmt.Sprintf("%d bytes, %q", len(text), excerpt(text, 60))
}

func (a *app) imageHistoryCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "history IMAGE",
		Short: "Show an agent's image and its parents, nearest first",
		Args:  exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), func(c *client.Client) error {
				r, err := c.Image(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				if r.GetDefinition() == "" {
					return fmt.Errorf("%s: it is no agent, and only those have a history; see `otters image inspect`", args[0])
				}
				i := r.GetImage()
				rows := [][]string{{i.GetReference(), i.GetDigest(), size(i.GetSize()), created(i.GetCreatedAt())}}
				for _, p := range r.GetParents() {
					row := []string{p.GetName(), p.GetDigest(), "not here", ""}
					if p.GetPresent() {
						row[2], row[3] = size(p.GetSize()), created(p.GetCreatedAt())
					}
					rows = append(rows, row)
				}
				return printTable(a.out, []string{"IMAGE", "DIGEST", "SIZE", "AGE"}, rows)
			})
		},
	}
}

func created(unix int64) string {
	if unix == 0 {
		return ""
	}
	return age(time.Unix(unix, 0), time.Now())
}

func (a *app) imageDiffCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "diff IMAGE IMAGE",
		Short: "Show what two images differ in: their definitions, annotations and parts",
		Long: `Show what two images differ in: their definitions, annotations and parts. Lines of the first start
with -, lines of the second with +. Nothing is printed for images that are the same.`,
		Args: exactly(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), func(c *client.Client) error {
				var sides [2][]string
				for i, name := range args {
					r, err := c.Image(cmd.Context(), name)
					if err != nil {
						return err
					}
					if sides[i], err = comparable(r); err != nil {
						return fmt.Errorf("%s: %w", name, err)
					}
				}
				l := lines{w: a.out}
				for _, line := range difference(sides[0], sides[1]) {
					l.printf("%s\n", neutral(line, false))
				}
				return l.err
			})
		},
	}
}

// comparable prints an image in lines, each of which says whole what it says.
func comparable(r *daemonv1.InspectImageResponse) ([]string, error) {
	var out []string
	if r.GetDefinition() != "" {
		var def spec.Agentfile
		if err := json.Unmarshal([]byte(r.GetDefinition()), &def); err != nil {
			return nil, err
		}
		for _, p := range r.GetParents() {
			out = append(out, "FROM "+p.GetName()+"@"+p.GetDigest())
		}
		out = append(out, definition(&def)...)
	}
	for _, key := range slices.Sorted(maps.Keys(r.GetAnnotations())) {
		out = append(out, "annotation "+key+"="+r.GetAnnotations()[key])
	}
	for _, p := range r.GetParts() {
		out = append(out, fmt.Sprintf("part %s %s", joined(p.GetTitle(), p.GetMediaType()), p.GetDigest()))
	}
	return out, nil
}

// difference lists what is in one and not in the other, in the order of each.
func difference(a, b []string) []string {
	var out []string
	for _, line := range a {
		if !slices.Contains(b, line) {
			out = append(out, "- "+line)
		}
	}
	for _, line := range b {
		if !slices.Contains(a, line) {
			out = append(out, "+ "+line)
		}
	}
	return out
}

func (a *app) imageTagCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "tag IMAGE NAME[:TAG]",
		Short: "Give an image a further name",
		Args:  exactly(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), func(c *client.Client) error {
				r, err := c.TagImage(cmd.Context(), args[0], args[1])
				if err != nil {
					return err
				}
				l := lines{w: a.out}
				l.printf("%s %s\n", neutral(r.GetReference(), false), neutral(r.GetDigest(), false))
				return l.err
			})
		},
	}
}

func (a *app) imageRmCommand(kind string) *cobra.Command {
	return &cobra.Command{
		Use:   "rm NAME[:TAG]...",
		Short: "Remove names of images, all of those given or none",
		Long: `Remove names of images, all of those given or none. Agents that were created of an image keep it,
and so do other names of it.`,
		Args: atLeast(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), func(c *client.Client) error {
				if kind == "bin" {
					if err := areBins(cmd.Context(), c, args); err != nil {
						return err
					}
				}
				removed, err := c.RemoveImages(cmd.Context(), args...)
				if err != nil {
					return err
				}
				l := lines{w: a.out}
				for _, ref := range removed {
					l.printf("%s\n", neutral(ref, false))
				}
				return l.err
			})
		},
	}
}

func areBins(ctx context.Context, c *client.Client, names []string) error {
	for _, name := range names {
		r, err := c.Image(ctx, name)
		if err != nil {
			return err
		}
		if r.GetImage().GetKind() != "bin" {
			return notBin(name)
		}
	}
	return nil
}

func (a *app) imageSaveCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "save [-o FILE] IMAGE...",
		Short: "Write images as an archive of an OCI image layout",
		Long: `Write images as a tar archive of an OCI image layout, which "otters image load" and other programs
read. Without -o it goes to standard output.`,
		Args: atLeast(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if file == "" && a.outTerm {
				return usagef("save: standard output is a terminal; name a file with -o FILE")
			}
			return a.with(cmd.Context(), func(c *client.Client) error {
				if file == "" {
					return c.SaveImages(cmd.Context(), a.out, args...)
				}
				return writeWhole(file, func(f *os.File) error { return c.SaveImages(cmd.Context(), f, args...) })
			})
		},
	}
	cmd.Flags().StringVarP(&file, "output", "o", "", "`path` of the archive")
	return cmd
}

// writeWhole writes a file that is there only when it is whole. What is no file, such as /dev/null or a pipe, is
// written to as it comes, and never replaced.
func writeWhole(path string, write func(*os.File) error) (err error) {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real // a link stays one
	}
	switch info, err := os.Stat(path); {
	case err == nil && info.IsDir():
		return fmt.Errorf("%s: it is a folder; name a file with -o", path)
	case err == nil && !info.Mode().IsRegular():
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return fmt.Errorf("%w; name another file with -o", err)
		}
		return errors.Join(write(f), f.Close())
	}
	part := path + ".part"
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s: it is there already; remove it if nobody writes it", part)
	}
	if err != nil {
		return fmt.Errorf("%w; name another file with -o", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(part))
		}
	}()
	if err = errors.Join(write(f), f.Close()); err != nil {
		return err
	}
	return os.Rename(part, path)
}

func (a *app) imageLoadCommand() *cobra.Command {
	var tags []string
	var file string
	cmd := &cobra.Command{
		Use:   "load [-i FILE] [flags]",
		Short: "Store the images of an archive of an OCI image layout",
		Long: `Store the images of a tar archive of an OCI image layout, not compressed, that "otters image save" or
another program wrote. All of it is checked before any of it is stored. Without -i it is read from
standard input.`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			in, err := a.input(cmd.Context(), "load", file)
			if err != nil {
				return err
			}
			defer in.Close()
			return a.with(cmd.Context(), func(c *client.Client) error {
				images, err := c.LoadImages(cmd.Context(), in, tags...)
				if err != nil {
					return err
				}
				l := lines{w: a.out}
				for _, i := range images {
					l.printf("%s %s\n", neutral(i.GetReference(), false), neutral(i.GetDigest(), false))
				}
				return l.err
			})
		},
	}
	cmd.Flags().StringVarP(&file, "input", "i", "", "`path` of the archive")
	cmd.Flags().StringArrayVarP(&tags, "tag", "t", nil, "`name[:tag]` for the image of an archive with one, in place of its own; may be given several times")
	return cmd
}

package main

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/otters-sh/otters/client"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
	"github.com/otters-sh/otters/spec"
)

func (a *app) binCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bin",
		Short: "Work with BIN images, which hold the tools of agents",
		Args:  cobra.ArbitraryArgs,
		RunE:  helpOrUnknown,
	}
	cmd.AddCommand(
		a.binBuildCommand(), a.binLsCommand(), a.imageInspectCommand("bin"),
		a.imagePushCommand("bin"), a.imagePullCommand("bin"), a.imageRmCommand("bin"),
	)
	return cmd
}

func (a *app) binBuildCommand() *cobra.Command {
	var opts client.BinOptions
	var usage string
	var labels []string
	cmd := &cobra.Command{
		Use:   "build -t NAME[:TAG] [flags] [OS/ARCH=]PROGRAM...",
		Short: "Pack static programs and their USAGE.md into a BIN image",
		Long: `Pack a static program for each platform, and its USAGE.md, into a BIN image in the daemon's registry.
A PROGRAM without a platform is for this machine's. The tool's name is that of the first program
unless --name gives another.`,
		Args: atLeast(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(opts.Tags) == 0 {
				return usagef("build: no name for the image; give one with -t NAME")
			}
			values, err := keyValues("--label", labels)
			if err != nil {
				return err
			}
			opts.Labels, opts.Programs = map[string]string{}, map[string]string{}
			for _, kv := range values {
				opts.Labels[kv[0]] = kv[1]
			}
			for _, arg := range args {
				platform, path, ok := strings.Cut(arg, "=")
				if !ok {
					platform, path = runtime.GOOS+"/"+runtime.GOARCH, arg
				}
				if _, twice := opts.Programs[platform]; twice {
					return usagef("build: two programs for %s; give one", platform)
				}
				opts.Programs[platform] = path
				if opts.Name == "" {
					opts.Name = filepath.Base(path)
				}
			}
			if usage != "" {
				text, err := readFile(usage, spec.MaxContent)
				if err != nil {
					return fmt.Errorf("build: usage: %w; name another file", err)
				}
				if opts.Usage = string(text); !utf8.ValidString(opts.Usage) {
					return fmt.Errorf("build: usage: %s: it is not valid UTF-8; convert it first", usage)
				}
			}
			return a.with(cmd.Context(), func(c *client.Client) error {
				r, err := c.BuildBin(cmd.Context(), opts)
				if err != nil {
					return err
				}
				l := lines{w: a.out}
				for _, ref := range r.GetReferences() {
					l.printf("%s %s\n", neutral(ref, false), neutral(r.GetDigest(), false))
				}
				return l.err
			})
		},
	}
	cmd.Flags().StringArrayVarP(&opts.Tags, "tag", "t", nil, "`name[:tag]` of the image; may be given several times")
	cmd.Flags().StringVar(&opts.Name, "name", "", "`name` of the tool")
	cmd.Flags().StringVar(&opts.Description, "description", "", "`text` that tells a model in one line what the tool does")
	cmd.Flags().StringVar(&usage, "usage", "", "`path` of the USAGE.md, which tells a model how to call the tool")
	cmd.Flags().StringArrayVar(&labels, "label", nil, "label `K=V` of the image; may be given several times")
	return cmd
}

func (a *app) binLsCommand() *cobra.Command {
	var f format
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the BIN images in the daemon's registry",
		Long:  "List the BIN images in the daemon's registry." + jsonHelp("a list of objects", imageJSON{}),
		Args:  exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd.Context(), func(c *client.Client) error {
				images, err := c.Images(cmd.Context())
				if err != nil {
					return err
				}
				var bins []*daemonv1.Image
				for _, i := range images {
					if i.GetKind() == "bin" {
						bins = append(bins, i)
					}
				}
				return a.printImages(bins, f)
			})
		},
	}
	addFormat(cmd, &f)
	return cmd
}

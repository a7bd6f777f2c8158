package main

import (
	"bufio"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/otters-sh/otters/client"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// pruneJSON is what image prune --format json prints.
type pruneJSON struct {
	DryRun bool `json:"dry_run"`
	// Names that were removed.
	References []string `json:"references"`
	// What was removed, and what stays for the grace alone.
	Manifests  int64 `json:"manifests"`
	Blobs      int64 `json:"blobs"`
	Bytes      int64 `json:"bytes"`
	Fresh      int64 `json:"fresh"`
	FreshBytes int64 `json:"fresh_bytes"`
}

func (a *app) imagePruneCommand() *cobra.Command {
	var f format
	var all, dry, force bool
	var grace time.Duration
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove images that have no name and no agent needs",
		Long: `Remove images that have no name any more and that no agent, running or stopped, needs, with the
content that nothing leads to then. With --all, names of images that no agent uses go too, but for
those of the daemon's own, otters/runtime and otters/tools.

What was pushed, built or pulled within --grace stays, since somebody may be about to name it. It asks
first where standard input and error are terminals.` + jsonHelp("an object", pruneJSON{}),
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if grace < 0 || grace > maxGrace {
				return usagef("prune: --grace: %s is not from 0s to 24h", grace)
			}
			if !force && !dry && a.inTerm && a.errTerm {
				what := "images without a name that no agent needs"
				if all {
					what = "all images that no agent uses"
				}
				if yes, err := a.confirm("Remove " + what + "?"); err != nil || !yes {
					return err
				}
			}
			seconds := int64((grace + time.Second - 1) / time.Second)
			return a.with(cmd.Context(), func(c *client.Client) error {
				r, err := c.PruneImages(cmd.Context(), &daemonv1.PruneImagesRequest{All: all, DryRun: dry, GraceSeconds: &seconds})
				if err != nil {
					return err
				}
				return a.printPruned(r, dry, f)
			})
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "remove the names too of images that no agent uses")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "tell what would be removed, and remove nothing")
	cmd.Flags().BoolVarP(&force, "force", "f", false, "do not ask")
	cmd.Flags().DurationVar(&grace, "grace", 10*time.Minute, "keep what was pushed, built or pulled within this `time`, up to 24h; 0s only where nobody does so now")
	addFormat(cmd, &f)
	return cmd
}

// confirm asks a question on the terminal; anything but a yes is a no.
func (a *app) confirm(question string) (bool, error) {
	if _, err := fmt.Fprintf(a.err, "%s [y/N] ", question); err != nil {
		return false, err
	}
	answer, err := bufio.NewReader(a.in).ReadString('\n')
	if err != nil && answer == "" {
		fmt.Fprintln(a.err)
		return false, nil // the end of the input is no yes
	}
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "y" || answer == "yes", nil
}

func (a *app) printPruned(r *daemonv1.PruneImagesResponse, dry bool, f format) error {
	if f == formatJSON {
		return printJSON(a.out, pruneJSON{
			DryRun: dry, References: notNil(r.GetReferences()), Manifests: r.GetManifests(), Blobs: r.GetBlobs(),
			Bytes: r.GetBytes(), Fresh: r.GetFresh(), FreshBytes: r.GetFreshBytes(),
		})
	}
	removed, frees := "removed", "freed"
	if dry {
		removed, frees = "would remove", "would free"
	}
	l := lines{w: a.out}
	for _, ref := range r.GetReferences() {
		l.printf("%s %s\n", removed, neutral(ref, false))
	}
	l.printf("%s %s: %d manifests and %d blobs\n", frees, size(r.GetBytes()), r.GetManifests(), r.GetBlobs())
	if r.GetFresh() > 0 {
		l.printf("%s more stay for now, since they are new; see --grace\n", size(r.GetFreshBytes()))
	}
	return l.err
}

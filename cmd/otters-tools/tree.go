package main

import (
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
)

// drawing is one run of tree.
type drawing struct {
	c              *call
	all, onlyDirs  *bool
	depth          int
	folders, files int
}

func tree(c *call, flags *pflag.FlagSet) func([]string) error {
	d := drawing{
		c:        c,
		all:      flags.BoolP("all", "a", false, "show names that start with a dot too"),
		onlyDirs: flags.BoolP("directories", "d", false, "show folders only"),
	}
	level := flags.StringP("level", "L", "", "go down `N` levels at most, 1 or more")
	return func(paths []string) error {
		d.depth = math.MaxInt
		if flags.Changed("level") {
			var err error
			if d.depth, err = depth(*level); err != nil || d.depth < 1 {
				return usageError("-L %s: want a whole number, 1 or more", *level)
			}
		}
		if len(paths) == 0 {
			paths = []string{"."}
		}
		for _, path := range paths {
			if err := d.start(path); err != nil {
				return err
			}
		}
		summary := "\n" + counted(d.folders, "folder")
		if !*d.onlyDirs {
			summary += ", " + counted(d.files, "file")
		}
		_, err := fmt.Fprintln(c.stdout, summary)
		return err
	}
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func (d *drawing) start(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		d.c.fail(path, err)
		return nil
	}
	if _, err := fmt.Fprintln(d.c.stdout, path); err != nil {
		return err
	}
	if !info.IsDir() {
		d.files++
		return nil
	}
	return d.folder(path, "", 1)
}

// folder draws what is in a folder, each line after the bars of the folders above.
func (d *drawing) folder(path, bars string, level int) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		d.c.fail(path, err)
		return nil
	}
	shown := entries[:0]
	for _, e := range entries {
		if (*d.all || !strings.HasPrefix(e.Name(), ".")) && (!*d.onlyDirs || e.IsDir()) {
			shown = append(shown, e)
		}
	}
	for i, e := range shown {
		branch, below := "├── ", "│   "
		if i == len(shown)-1 {
			branch, below = "└── ", "    "
		}
		full := filepath.Join(path, e.Name())
		name := e.Name()
		if e.Type()&fs.ModeSymlink != 0 {
			if to, err := os.Readlink(full); err == nil {
				name += " -> " + to
			}
		}
		if _, err := fmt.Fprintln(d.c.stdout, bars+branch+name); err != nil {
			return err
		}
		if !e.IsDir() {
			d.files++
			continue
		}
		d.folders++
		if level < d.depth {
			if err := d.folder(full, bars+below, level+1); err != nil {
				return err
			}
		}
	}
	return nil
}

package main

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"
	lsformat "github.com/u-root/u-root/pkg/ls"
)

// listing is one run of ls.
type listing struct {
	c                                         *call
	all, long, human, self, recurse, classify *bool
	bySize, byTime, reverse, one              *bool
	printed                                   bool
}

func ls(c *call, flags *pflag.FlagSet) func([]string) error {
	l := listing{
		c:        c,
		all:      flags.BoolP("all", "a", false, "list names that start with a dot too, but not . and .."),
		long:     flags.BoolP("long", "l", false, "mode, owner, group, size in bytes and time before the name"),
		human:    flags.BoolP("human-readable", "h", false, "with -l: sizes like 1.2 kB (thousands)"),
		self:     flags.BoolP("directory", "d", false, "list a folder itself, not what is in it"),
		recurse:  flags.BoolP("recursive", "R", false, "list folders below too"),
		classify: flags.BoolP("classify", "F", false, "mark folders with /, programs with *, links with @"),
		bySize:   flags.BoolP("size", "S", false, "largest first"),
		byTime:   flags.BoolP("time", "t", false, "newest first"),
		reverse:  flags.BoolP("reverse", "r", false, "reverse the order"),
		one:      flags.BoolP("one", "1", false, "one name a line, as always"),
	}
	return l.run
}

// node is a file and the path that leads to it.
type node struct {
	name, path string
	info       fs.FileInfo
}

func (l *listing) run(paths []string) error {
	switch {
	case *l.bySize && *l.byTime:
		return usageError("-S and -t: only one of them at a time")
	case *l.human && !*l.long:
		return usageError("-h: only together with -l")
	case *l.self && *l.recurse:
		return usageError("-d and -R: only one of them at a time")
	}
	if len(paths) == 0 {
		paths = []string{"."}
	}
	var files, folders []node
	for _, path := range paths {
		info, err := l.stat(path)
		if err != nil {
			l.c.fail(path, err)
			continue
		}
		n := node{path, path, info}
		if info.IsDir() && !*l.self {
			folders = append(folders, n)
		} else {
			files = append(files, n)
		}
	}
	l.sort(files)
	l.sort(folders)
	if err := l.print(files); err != nil {
		return err
	}
	for _, n := range folders {
		if err := l.folder(n.path, len(paths) > 1 || *l.recurse); err != nil {
			return err
		}
	}
	return nil
}

// stat follows a link that was named, as long as its target is what the listing is about; a link to
// nothing is listed as itself.
func (l *listing) stat(path string) (fs.FileInfo, error) {
	if !*l.self && !*l.long {
		if info, err := os.Stat(path); err == nil {
			return info, nil
		}
	}
	return os.Lstat(path)
}

// folder lists what is in a folder; what can't be read is reported and passed over.
func (l *listing) folder(path string, heading bool) error {
	if heading {
		if l.printed {
			fmt.Fprintln(l.c.stdout)
		}
		fmt.Fprintf(l.c.stdout, "%s:\n", path)
		l.printed = true
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		l.c.fail(path, err)
	}
	var nodes []node
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") && !*l.all {
			continue
		}
		full := filepath.Join(path, e.Name())
		info, err := e.Info()
		if err != nil {
			l.c.fail(full, err)
			continue
		}
		nodes = append(nodes, node{e.Name(), full, info})
	}
	l.sort(nodes)
	if err := l.print(nodes); err != nil {
		return err
	}
	for _, n := range nodes {
		if *l.recurse && n.info.IsDir() {
			if err := l.folder(n.path, true); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *listing) sort(nodes []node) {
	slices.SortFunc(nodes, func(a, b node) int {
		order := 0
		switch {
		case *l.bySize:
			order = cmp.Compare(b.info.Size(), a.info.Size())
		case *l.byTime:
			order = b.info.ModTime().Compare(a.info.ModTime())
		}
		if order == 0 {
			order = strings.Compare(a.name, b.name)
		}
		if *l.reverse {
			return -order
		}
		return order
	})
}

func (l *listing) print(nodes []node) error {
	if len(nodes) == 0 {
		return nil
	}
	l.printed = true
	var format lsformat.Stringer = lsformat.NameStringer{}
	if *l.long {
		format = lsformat.LongStringer{Human: *l.human, Name: format}
	}
	table := tabwriter.NewWriter(l.c.stdout, 0, 0, 1, ' ', 0)
	for _, n := range nodes {
		info := lsformat.FromOSFileInfo(n.path, n.info)
		info.Name = n.name
		if *l.classify {
			info.Name += mark(n.info.Mode())
		}
		fmt.Fprintln(table, format.FileString(info))
	}
	return table.Flush()
}

// mark is the letter that -F puts after a name.
func mark(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "/"
	case m&fs.ModeSymlink != 0:
		return "@"
	case m.IsRegular() && m&0o111 != 0:
		return "*"
	}
	return ""
}

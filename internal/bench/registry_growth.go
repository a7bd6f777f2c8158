//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/otters-sh/otters/registry"
)

// What a store is filled with in the rows about growth: tags, as many small contents, and contents that
// are files.
const (
	growthTags  = 100_000
	growthFiles = 10_000
	growthSize  = 64<<10 + 1 // the smallest that is a file
)

// growthRounds is how often each of these rows is measured; the median counts.
const growthRounds = 5

// growth measures ours alone: the start with an empty store and with many contents, and pushes of
// tagged manifests to a repository with few tags and with many.
func growth(ctx context.Context, b *built, dir string) ([]row, error) {
	g := &growing{ctx: ctx, dir: dir, args: []string{b.path("ottersd"), "registry", "serve", "--log-level", "error", "--home"}}
	// The first start of all makes the store.
	if _, err := g.start(); err != nil {
		return nil, err
	}
	few, err := g.measure("few tags")
	if err != nil {
		return nil, err
	}
	if err := fill(ctx, filepath.Join(dir, "registry")); err != nil {
		return nil, err
	}
	many, err := g.measure(fmt.Sprintf("%d tags and %d files", growthTags, growthFiles))
	if err != nil {
		return nil, err
	}
	many[0] = many[0].over(few[0], 1.5)
	many[1] = many[1].atLeast(few[1], 0.8)
	return append(few, many...), nil
}

// growing is a store whose server is started again and again.
type growing struct {
	ctx  context.Context
	dir  string
	args []string
}

// start starts the server, gives the time that took, and ends it.
func (g *growing) start() (time.Duration, error) {
	started := time.Now()
	s, err := startRegistry(g.ctx, "otters", g.dir, g.args)
	if err != nil {
		return 0, err
	}
	took := time.Since(started)
	s.stop()
	return took, nil
}

func (g *growing) measure(what string) ([]row, error) {
	var starts samples
	for range growthRounds {
		took, err := g.start()
		if err != nil {
			return nil, err
		}
		starts = append(starts, took)
	}
	s, err := startRegistry(g.ctx, "otters", g.dir, g.args)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	l := &registryLoad{ctx: g.ctx, servers: []*registryServer{s}, budget: time.Second / 2}
	config, err := l.config(s)
	if err != nil {
		return nil, err
	}
	var rounds []measured
	for range growthRounds {
		done, err := l.run(s, 1, func(n int64) error {
			return l.putManifest(s, config, fmt.Sprintf("grow-%s-%d", strings.ReplaceAll(what, " ", ""), n), n, "")
		})
		if err != nil {
			return nil, err
		}
		rounds = append(rounds, done)
	}
	return []row{
		{Name: "start, " + what, Value: ms(starts.quantile(0.5)), Unit: "ms"},
		median(rounds).row("tagged manifest PUT, "+what, 0),
	}, nil
}

// fill tags one manifest very often, and pushes as many contents, and files.
func fill(ctx context.Context, dir string) error {
	store, err := registry.Open(dir, registry.Options{})
	if err != nil {
		return err
	}
	repo, err := store.Repository("bench")
	if err != nil {
		return errors.Join(err, store.Close())
	}
	manifest := manifestOf(descriptor("application/octet-stream", []byte("{}")), 0, "")
	root := descriptor(mediaTypeManifest, manifest)
	if err := repo.Push(ctx, root, bytes.NewReader(manifest)); err != nil {
		return errors.Join(err, store.Close())
	}
	push := func(blob []byte) error {
		return repo.Push(ctx, descriptor("application/octet-stream", blob), bytes.NewReader(blob))
	}
	var group errgroup.Group
	group.SetLimit(256)
	for i := range growthTags {
		group.Go(func() error {
			if i < growthFiles {
				file := bytes.Repeat([]byte("file"), growthSize/4+1)[:growthSize]
				copy(file, fmt.Sprint("file ", i))
				if err := push(file); err != nil {
					return err
				}
			}
			if err := push([]byte(fmt.Sprint("blob ", i))); err != nil {
				return err
			}
			return repo.Tag(ctx, root, fmt.Sprintf("fill%06d", i))
		})
	}
	return errors.Join(group.Wait(), store.Close())
}

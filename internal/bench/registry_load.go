//go:build linux

package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const mediaTypeManifest = ocispec.MediaTypeImageManifest

// registryLoad drives servers one after the other with the same requests.
type registryLoad struct {
	ctx     context.Context
	servers []*registryServer
	scratch string
	// budget is how long a row runs, unless its requests are few and large.
	budget time.Duration
	// turn is which server begins; each round it is another.
	turn int
	next atomic.Int64 // makes content unique
}

// measured is what came of one row.
type measured struct {
	samples samples
	took    time.Duration
	times   samples // of all rounds
}

// row tells requests per second, or MB/s where each request carries size bytes of interest.
func (m measured) row(name string, size int64) row {
	r := row{Name: name, Value: float64(len(m.samples)) / m.took.Seconds(), Unit: "1/s", P50: ms(m.times.quantile(0.5)), P99: ms(m.times.quantile(0.99))}
	if size > 0 {
		r.Value, r.Unit = r.Value*float64(size)/1e6, "MB/s"
	}
	return r
}

// rowRounds is how often each row of each server is measured; the median counts.
const rowRounds = 3

// median is the round whose rate is in the middle, with the times of all.
func median(rounds []measured) measured {
	slices.SortFunc(rounds, func(a, b measured) int {
		return cmp.Compare(float64(len(a.samples))/a.took.Seconds(), float64(len(b.samples))/b.took.Seconds())
	})
	m := rounds[len(rounds)/2]
	for _, r := range rounds {
		m.times = append(m.times, r.samples...)
	}
	return m
}

// run has clients make requests until the budget is used up, each at least one. n differs between all
// requests of the program's life.
func (l *registryLoad) run(s *registryServer, clients int, request func(n int64) error) (measured, error) {
	var mu sync.Mutex
	var m measured
	var first error
	var wg sync.WaitGroup
	// What the server before this one left to be written is not this one's to wait for.
	unix.Sync()
	started := time.Now()
	for range clients {
		wg.Go(func() {
			var own samples
			var err error
			for time.Since(started) < l.budget || len(own) == 0 {
				begun := time.Now()
				if err = request(l.next.Add(1)); err != nil {
					break
				}
				own = append(own, time.Since(begun))
			}
			mu.Lock()
			defer mu.Unlock()
			m.samples = append(m.samples, own...)
			if first == nil {
				first = err
			}
		})
	}
	wg.Wait()
	m.took = time.Since(started)
	return m, first
}

// each measures one kind of request on all servers with all numbers of clients: some times, which another
// server begins each time, so that none has the machine always in the state the same other left it in.
// Ours is to be first among those that make writes durable; ggcr is no such. floor measures the machine
// before the requests of a number of clients, where it is not nil.
func (l *registryLoad) each(name string, size int64, times int, floor func(clients int) error, request func(s *registryServer, n int64) error) ([]row, error) {
	var rows []row
	for _, clients := range clientCounts {
		if floor != nil {
			if err := floor(clients); err != nil {
				return nil, err
			}
		}
		rounds := map[string][]measured{}
		for range times {
			for i := range l.servers {
				s := l.servers[(i+l.turn)%len(l.servers)]
				m, err := l.run(s, clients, func(n int64) error { return request(s, n) })
				if err != nil {
					return nil, err
				}
				rounds[s.name] = append(rounds[s.name], m)
			}
			l.turn++
		}
		byServer := map[string]row{}
		for server, of := range rounds {
			byServer[server] = median(of).row(fmt.Sprintf("%s, %d clients: %s", name, clients, server), size)
		}
		ours, ok := byServer["otters"]
		if durable, has := byServer["distribution"]; ok && has {
			ours = ours.atLeast(durable, 1)
		}
		rows = append(rows, ours)
		for _, peer := range []string{"distribution", "ggcr"} {
			if r, ok := byServer[peer]; ok {
				rows = append(rows, r)
			}
		}
	}
	return rows, nil
}

// blobs makes unique blobs of one size: a common part, hashed once, and sixteen bytes of their own.
type blobs struct {
	common []byte
	state  []byte
}

func newBlobs(size int) (*blobs, error) {
	b := &blobs{common: bytes.Repeat([]byte("otters "), size/7+1)[:size-16]}
	h := sha256.New()
	h.Write(b.common)
	var err error
	b.state, err = h.(encoding.BinaryMarshaler).MarshalBinary()
	return b, err
}

func (b *blobs) blob(n int64) (string, io.Reader, error) {
	own := []byte(fmt.Sprintf("%016x", n))
	h := sha256.New()
	if err := h.(encoding.BinaryUnmarshaler).UnmarshalBinary(b.state); err != nil {
		return "", nil, err
	}
	h.Write(own)
	return digest.NewDigest(digest.SHA256, h).String(), io.MultiReader(bytes.NewReader(b.common), bytes.NewReader(own)), nil
}

// transfers measures pushes and pulls of blobs of one size.
func (l *registryLoad) transfers(name string, size int, perSecond bool, floor func(clients int) error) ([]row, error) {
	made, err := newBlobs(size)
	if err != nil {
		return nil, err
	}
	unit := int64(size)
	if perSecond {
		unit = 0
	}
	var mu sync.Mutex
	pushed := map[*registryServer]string{}
	times := rowRounds
	if size > 1<<20 {
		times = 1 // more would fill the disk
	}
	rows, err := l.each("push "+name, unit, times, floor, func(s *registryServer, n int64) error {
		d, body, err := made.blob(n)
		if err == nil {
			err = s.push(l.ctx, d, int64(size), body)
		}
		mu.Lock()
		defer mu.Unlock()
		pushed[s] = d
		return err
	})
	if err != nil {
		return nil, err
	}
	more, err := l.each("pull "+name, unit, rowRounds, nil, func(s *registryServer, _ int64) error {
		_, err := s.do(l.ctx, http.MethodGet, "/v2/bench/blobs/"+pushed[s], 0, nil, "")
		return err
	})
	return append(rows, more...), err
}

// smallPushes holds ours against the hand's rate too.
func (l *registryLoad) smallPushes() ([]row, error) {
	hands := map[int]row{}
	rows, err := l.transfers("1 KiB", 1<<10, true, func(clients int) error {
		rate, err := syncByHand(l.scratch + "/hand")
		hands[clients] = row{Name: fmt.Sprintf("1 KiB made durable by hand, one writer, before %d clients", clients), Value: rate, Unit: "1/s"}
		return err
	})
	for _, r := range rows {
		for clients, times := range map[int]float64{8: 1.5, 64: 3} {
			if r.Name == fmt.Sprintf("push 1 KiB, %d clients: otters", clients) {
				r.Name += ", against the hand"
				rows = append(rows, hands[clients], r.atLeast(hands[clients], times))
			}
		}
	}
	return rows, err
}

func (l *registryLoad) mediumPushes() ([]row, error) { return l.transfers("1 MiB", 1<<20, false, nil) }

// largePushes takes one request a client: a budget would be used up by the first.
func (l *registryLoad) largePushes() ([]row, error) {
	var hash row
	rows, err := l.transfers("100 MiB", 100<<20, false, func(clients int) error {
		if clients == 1 {
			hash = row{Name: "sha256, one core", Value: hashRate(), Unit: "MB/s"}
		}
		return nil
	})
	for _, r := range rows {
		if r.Name == "push 100 MiB, 1 clients: otters" {
			r.Name += ", against sha256"
			rows = append(rows, hash, r.atLeast(hash, 0.4))
		}
	}
	return rows, err
}

func descriptor(mediaType string, data []byte) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
}

// manifestOf is an image manifest that n makes unique, with a subject where one is given.
func manifestOf(config ocispec.Descriptor, n int64, subject digest.Digest) []byte {
	m := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: mediaTypeManifest, Config: config,
		Layers: []ocispec.Descriptor{}, Annotations: map[string]string{"n": fmt.Sprint(n)},
	}
	if subject != "" {
		m.ArtifactType = "application/x.bench"
		m.Subject = &ocispec.Descriptor{MediaType: mediaTypeManifest, Digest: subject, Size: 1}
	}
	data, err := json.Marshal(m)
	if err != nil {
		panic(err) // of strings and numbers
	}
	return data
}

func (l *registryLoad) config(s *registryServer) (ocispec.Descriptor, error) {
	data := []byte("{}")
	d := descriptor(ocispec.MediaTypeImageConfig, data)
	return d, s.push(l.ctx, d.Digest.String(), d.Size, bytes.NewReader(data))
}

func (l *registryLoad) putManifest(s *registryServer, config ocispec.Descriptor, reference string, n int64, subject digest.Digest) error {
	data := manifestOf(config, n, subject)
	if reference == "" {
		reference = digest.FromBytes(data).String()
	}
	_, err := s.do(l.ctx, http.MethodPut, "/v2/bench/manifests/"+reference, int64(len(data)), bytes.NewReader(data), mediaTypeManifest)
	return err
}

func (l *registryLoad) manifests() ([]row, error) {
	var config ocispec.Descriptor
	for _, s := range l.servers {
		var err error
		if config, err = l.config(s); err == nil {
			err = l.putManifest(s, config, "one", 0, "")
		}
		if err != nil {
			return nil, err
		}
	}
	rows, err := l.each("manifest PUT", 0, rowRounds, nil, func(s *registryServer, n int64) error { return l.putManifest(s, config, "", n, "") })
	if err != nil {
		return nil, err
	}
	more, err := l.each("manifest GET", 0, rowRounds, nil, func(s *registryServer, _ int64) error {
		_, err := s.do(l.ctx, http.MethodGet, "/v2/bench/manifests/one", 0, nil, "")
		return err
	})
	return append(rows, more...), err
}

// seed makes count requests at once on all servers.
func (l *registryLoad) seed(servers []*registryServer, count int, request func(s *registryServer, i int) error) error {
	for _, s := range servers {
		var next atomic.Int64
		var wg sync.WaitGroup
		errs := make(chan error, 16)
		for range 16 {
			wg.Go(func() {
				for i := next.Add(1); i <= int64(count); i = next.Add(1) {
					if err := request(s, int(i)); err != nil {
						errs <- err
						return
					}
				}
			})
		}
		wg.Wait()
		close(errs)
		if err := <-errs; err != nil {
			return err
		}
	}
	return nil
}

func (l *registryLoad) tags() ([]row, error) {
	config := descriptor(ocispec.MediaTypeImageConfig, []byte("{}"))
	err := l.seed(l.servers, 10_000, func(s *registryServer, i int) error {
		return l.putManifest(s, config, fmt.Sprintf("tag%05d", i), 0, "")
	})
	if err != nil {
		return nil, err
	}
	return l.each("tags list of 10,000", 0, rowRounds, nil, func(s *registryServer, _ int64) error {
		_, err := s.do(l.ctx, http.MethodGet, "/v2/bench/tags/list", 0, nil, "")
		return err
	})
}

// referrers leaves out distribution, which does not have the endpoint.
func (l *registryLoad) referrers() ([]row, error) {
	with := slices.DeleteFunc(slices.Clone(l.servers), func(s *registryServer) bool { return s.name == "distribution" })
	config := descriptor(ocispec.MediaTypeImageConfig, []byte("{}"))
	subject := digest.FromString("subject")
	err := l.seed(with, 1000, func(s *registryServer, i int) error { return l.putManifest(s, config, "", int64(-i), subject) })
	if err != nil {
		return nil, err
	}
	some := &registryLoad{ctx: l.ctx, servers: with, budget: l.budget}
	return some.each("referrers list of 1,000", 0, rowRounds, nil, func(s *registryServer, _ int64) error {
		_, err := s.do(l.ctx, http.MethodGet, "/v2/bench/referrers/"+subject.String(), 0, nil, "")
		return err
	})
}

// memory measures what eight uploads of 100 MB at once cost a server that has done all before.
func (l *registryLoad) memory() ([]row, error) {
	made, err := newBlobs(100_000_000)
	if err != nil {
		return nil, err
	}
	short := &registryLoad{ctx: l.ctx, budget: time.Millisecond}
	short.next.Store(1 << 40)
	var rows []row
	for _, s := range l.servers {
		if err := s.resetPeak(); err != nil {
			return nil, err
		}
		_, err := short.run(s, 8, func(n int64) error {
			d, body, err := made.blob(n)
			if err != nil {
				return err
			}
			return s.push(l.ctx, d, 100_000_000, body)
		})
		if err != nil {
			return nil, err
		}
		peak, err := s.peak()
		if err != nil {
			return nil, err
		}
		r := row{Name: "peak memory, eight uploads of 100 MB: " + s.name, Value: peak, Unit: "MB"}
		if s.name == "otters" {
			r = r.under(64)
		}
		rows = append(rows, r)
	}
	return rows, nil
}

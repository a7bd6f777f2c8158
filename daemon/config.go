package daemon

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"gopkg.in/yaml.v3"

	"github.com/otters-sh/otters/sandbox"
)

// maxConfigBytes bounds config.yaml.
const maxConfigBytes = 1 << 20

// defaultRegistryPort is where the embedded registry listens unless the port is taken.
const defaultRegistryPort = 5527

// settings is what config.yaml holds. A missing file is the defaults.
type settings struct {
	// readyTimeout is how long a runtime may take until its first answer.
	readyTimeout time.Duration
	// registryPort is 0 where the file names none: then the default port or else a free one.
	registryPort int
	// upstreams are the registries that images may be pulled from, by host.
	upstreams map[string]*upstream
	// sandbox is the level of agents that are created without one; empty is the strongest.
	sandbox sandbox.Level
	// logMaxSize is the size in bytes above which an agent's log goes on in a new file, logFiles how
	// many files of it there are at most, the one in use among them.
	logMaxSize int64
	logFiles   int
	// maxStarts is how many agents start at the same time.
	maxStarts int
}

// size reads values such as "10MiB" or "4096".
type size int64

var sizeUnits = map[string]int64{"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}

func (s *size) UnmarshalYAML(n *yaml.Node) error {
	digits := strings.TrimRight(n.Value, "BKMGi")
	unit, known := sizeUnits[n.Value[len(digits):]]
	v, err := strconv.ParseInt(digits, 10, 64)
	if n.Kind != yaml.ScalarNode || err != nil || !known || v < 0 || v > math.MaxInt64/unit {
		return fmt.Errorf("line %d: %q is not a size such as 10MiB", n.Line, n.Value)
	}
	*s = size(v * unit)
	return nil
}

// levels can be asked for by name.
var levels = []sandbox.Level{sandbox.Off, sandbox.Limited, sandbox.Strict}

// duration reads values such as "30s".
type duration time.Duration

func (d *duration) UnmarshalYAML(n *yaml.Node) error {
	v, err := time.ParseDuration(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil {
		return fmt.Errorf("line %d: %q is not a duration such as 30s", n.Line, n.Value)
	}
	*d = duration(v)
	return nil
}

// readSettings reads path strictly: an unknown key, a key given twice or a value out of range is an
// error that names the line or the key.
func readSettings(path string) (settings, error) {
	s := settings{readyTimeout: 30 * time.Second, logMaxSize: 10 << 20, logFiles: 3, maxStarts: 32}
	b, err := readOperators(path, maxConfigBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("configuration: %w", err)
	}
	if err := s.parse(b); err != nil {
		return s, fmt.Errorf("configuration %s: %w", path, err)
	}
	return s, nil
}

// readOperators reads a file of the operator's whole. A named pipe is refused, and its other end not waited for.
func readOperators(path string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Mode()&fs.ModeNamedPipe != 0 {
		return nil, fmt.Errorf("%s: a named pipe and no file; put a file in its place", path)
	}
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s: larger than %d bytes", path, limit)
	}
	return b, err
}

// configFile is config.yaml.
type configFile struct {
	ReadyTimeout *duration        `yaml:"ready-timeout"`
	RegistryPort *int             `yaml:"registry-port"`
	LogMaxSize   *size            `yaml:"log-max-size"`
	LogFiles     *int             `yaml:"log-files"`
	MaxStarts    *int             `yaml:"max-starts"`
	Upstreams    []upstreamConfig `yaml:"upstreams"`
	Sandbox      *string          `yaml:"sandbox"`
}

// unknownField and otherKind are how the library tells of a field that there is not, and of a value in the
// place of another kind.
var (
	unknownField = regexp.MustCompile(`(?s)field (.+) not found in type daemon\.(\w+)`)
	otherKind    = regexp.MustCompile("(?s)cannot unmarshal !!(\\w+)(?: `(.*)`)? into (\\S+)")
)

// kinds are words for what is expected, by Go's, and for what is found, by YAML's.
var kinds = map[string]string{
	"daemon.configFile": "a setting", "[]daemon.upstreamConfig": "a list of registries", "daemon.upstreamConfig": "the fields of a registry",
	"[]string": "a list", "string": "a text", "bool": "true or false", "int": "a whole number",
	"seq": "a list", "map": "fields",
}

// configError says for a person what the library found.
func configError(err error) error {
	var of *yaml.TypeError
	if !errors.As(err, &of) {
		return oneLine(err)
	}
	var lines []string
	for _, l := range of.Errors {
		l = otherKind.ReplaceAllStringFunc(l, func(s string) string {
			m := otherKind.FindStringSubmatch(s)
			found := kinds[m[1]]
			if m[2] != "" {
				found = strconv.Quote(m[2])
			}
			return fmt.Sprintf("found %s; want %s", cmp.Or(found, m[1]), cmp.Or(kinds[m[3]], "another kind"))
		})
		lines = append(lines, unknownField.ReplaceAllStringFunc(l, func(s string) string {
			m := unknownField.FindStringSubmatch(s)
			known := fieldNames(reflect.TypeFor[configFile]())
			if m[2] == reflect.TypeFor[upstreamConfig]().Name() {
				known = fieldNames(reflect.TypeFor[upstreamConfig]())
			}
			return fmt.Sprintf("unknown field %q; there are %s", clip(m[1]), strings.Join(known, ", "))
		}))
	}
	return errors.New(flatten(strings.Join(lines, "\n")))
}

func fieldNames(t reflect.Type) []string {
	var out []string
	for f := range t.Fields() {
		out = append(out, f.Tag.Get("yaml"))
	}
	return out
}

func (s *settings) parse(b []byte) error {
	var file configFile
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(&file); err != nil && !errors.Is(err, io.EOF) {
		return configError(err)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return errors.New("has more than one document; keep one")
	}
	if v := file.ReadyTimeout; v != nil {
		s.readyTimeout = time.Duration(*v)
	}
	if v := file.RegistryPort; v != nil {
		s.registryPort = *v
		if *v < 1 || *v > 65535 {
			return fmt.Errorf("registry-port: %d is not from 1 to 65535", *v)
		}
	}
	for _, v := range file.Upstreams {
		u, err := parseUpstream(v)
		if err != nil {
			return err
		}
		if s.upstreams[u.host] != nil {
			return fmt.Errorf("upstreams: %s is there twice; keep one", u.host)
		}
		if s.upstreams == nil {
			s.upstreams = make(map[string]*upstream)
		}
		s.upstreams[u.host] = u
	}
	if v := file.Sandbox; v != nil {
		s.sandbox = sandbox.Level(*v)
		if !slices.Contains(levels, s.sandbox) {
			return fmt.Errorf("sandbox: %q is not off, limited or strict", *v)
		}
	}
	if err := s.setLimits(file.LogMaxSize, file.LogFiles, file.MaxStarts); err != nil {
		return err
	}
	if s.readyTimeout < 10*time.Millisecond || s.readyTimeout > time.Hour {
		return fmt.Errorf("ready-timeout: %s is not from 10ms to 1h", s.readyTimeout)
	}
	return nil
}

// setLimits sets those that the file names.
func (s *settings) setLimits(maxSize *size, files, starts *int) error {
	if maxSize != nil {
		s.logMaxSize = int64(*maxSize)
		if s.logMaxSize < 64<<10 || s.logMaxSize > 1<<40 {
			return fmt.Errorf("log-max-size: %d bytes are not from 64KiB to 1024GiB", s.logMaxSize)
		}
	}
	if files != nil {
		s.logFiles = *files
		if s.logFiles < 2 || s.logFiles > maxLogFiles {
			return fmt.Errorf("log-files: %d is not from 2 to %d", s.logFiles, maxLogFiles)
		}
	}
	if starts != nil {
		s.maxStarts = *starts
		if s.maxStarts < 1 || s.maxStarts > 10_000 {
			return fmt.Errorf("max-starts: %d is not from 1 to 10000", s.maxStarts)
		}
	}
	return nil
}

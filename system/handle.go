package system

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/go-git/go-billy/v5"
	"github.com/google/uuid"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/sandbox"
	"github.com/otters-sh/otters/spec"
	"github.com/otters-sh/otters/workspace"
)

const (
	handleFile    = "handle.json"
	handleVersion = 1
	// maxHandleSize bounds what is read back; a handle is written from an Agentfile, which is
	// smaller by far.
	maxHandleSize = 8 << 20
)

// handle is everything needed to find an agent again, in handle.json beside its tree; docs/state.md
// has the format. Sealed values are bound to the agent's id and their own name.
type handle struct {
	Version   int             `json:"version"`
	ID        uuid.UUID       `json:"id"`
	CreatedAt time.Time       `json:"created_at"`
	Ref       spec.Reference  `json:"ref"`
	Overrides *spec.Agentfile `json:"overrides,omitempty"`
	// Mounts and OverrideMounts are apart since an Agentfile's JSON form has no mounts.
	OverrideMounts []spec.Mount          `json:"override_mounts,omitempty"`
	Mounts         []spec.Mount          `json:"mounts,omitempty"`
	ImageRef       string                `json:"image_ref,omitempty"`
	LocalRuntime   string                `json:"local_runtime,omitempty"`
	Capabilities   []executor.Capability `json:"capabilities,omitempty"`
	DaemonURL      string                `json:"daemon_url,omitempty"`
	// StopGraceMs is nil for the default.
	StopGraceMs *int64 `json:"stop_grace_ms,omitempty"`
	// Limits are nil where there are none.
	Limits *limits `json:"limits,omitempty"`
	// SealedToken is the value of OTTERS_AGENT_TOKEN.
	SealedToken []byte `json:"sealed_agent_token,omitempty"`
	// SealedEnvs are the values of ENV overrides by key.
	SealedEnvs map[string][]byte `json:"sealed_envs,omitempty"`

	Addr string `json:"addr"`
	// UID is the user id of the agent's own; -1 where it has none.
	UID int `json:"uid"`
	// Sandbox is the level asked for by name; empty is the provider's.
	Sandbox sandbox.Level `json:"sandbox,omitempty"`
	// AllowNet are the destinations of its proxy, ProxyHash that of what its runtime presents there.
	AllowNet  []string `json:"allow_net,omitempty"`
	ProxyHash []byte   `json:"proxy_hash,omitempty"`
	// Prepared tells that the tree is complete; the fields below are then set.
	Prepared bool `json:"prepared,omitempty"`
	// Inherit tells that the runtime takes its listener by descriptor.
	Inherit bool `json:"inherit,omitempty"`
	// OfflineSessions tells that the runtime works on its sessions while it does not serve.
	OfflineSessions bool `json:"offline_sessions,omitempty"`
	// Source is the resolved definition, without the values of ENV overrides.
	Source *spec.Agentfile `json:"source,omitempty"`
	// AgentYAML is what the tree's agent.yaml was when it was written.
	AgentYAML string `json:"agent_yaml,omitempty"`
	// SealedServeToken is what the running runtime expects of its callers.
	SealedServeToken []byte `json:"sealed_serve_token,omitempty"`
}

// limits are sandbox.Limits as they are kept; zero is no limit.
type limits struct {
	Memory int64 `json:"memory,omitempty"`          // bytes
	CPU    int64 `json:"cpu_thousandths,omitempty"` // of a processor
	PIDs   int64 `json:"pids,omitempty"`
}

func purpose(id uuid.UUID, name string) string { return id.String() + " " + name }

// write stores the handle whole. With sync it survives a power loss; what changes at a start need
// not, since no agent does either.
func (h *handle) write(fs billy.Filesystem, sync bool) error {
	data, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("handle of agent %s: %w", h.ID, err)
	}
	return workspace.WriteFile(fs, handleFile, data, 0o600, sync)
}

// sweepHandles removes what a process left behind that died while it wrote a handle.
func sweepHandles(fs billy.Filesystem) error {
	entries, err := fs.ReadDir("")
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "."+handleFile+"-") {
			errs = append(errs, fs.Remove(e.Name()))
		}
	}
	return errors.Join(errs...)
}

// readHandle reads the handle of agent id. Errors wrap ErrHandle.
func readHandle(fs billy.Filesystem, id uuid.UUID) (*handle, error) {
	f, err := fs.Open(handleFile)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrHandle, err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxHandleSize+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrHandle, err)
	}
	if len(data) > maxHandleSize {
		return nil, fmt.Errorf("%w: %s is over %d bytes", ErrHandle, handleFile, maxHandleSize)
	}
	var version struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(data, &version); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrHandle, handleFile, err)
	}
	if version.Version != handleVersion {
		return nil, fmt.Errorf("%w: %s has version %d, this program knows %d", ErrHandle, handleFile, version.Version, handleVersion)
	}
	h := new(handle)
	if err := json.Unmarshal(data, h); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrHandle, handleFile, err)
	}
	if h.ID != id {
		return nil, fmt.Errorf("%w: %s is of agent %s", ErrHandle, handleFile, h.ID)
	}
	return h, nil
}

// sealEnvs moves the values out of af, which must be the caller's own copy.
func (h *handle) sealEnvs(s *sealer, af *spec.Agentfile) {
	for i := range af.Envs {
		e := &af.Envs[i]
		if h.SealedEnvs == nil {
			h.SealedEnvs = make(map[string][]byte)
		}
		h.SealedEnvs[e.Key] = s.seal([]byte(e.Value), purpose(h.ID, "env "+e.Key))
		e.Value = ""
	}
}

// openEnvs puts the sealed values back into af where it has their keys.
func (h *handle) openEnvs(s *sealer, af *spec.Agentfile) error {
	for i := range af.Envs {
		e := &af.Envs[i]
		sealed, ok := h.SealedEnvs[e.Key]
		if !ok {
			continue
		}
		plain, err := s.open(sealed, purpose(h.ID, "env "+e.Key))
		if err != nil {
			return fmt.Errorf("%w: value of %s: %w", ErrHandle, e.Key, err)
		}
		e.Value = string(plain)
	}
	return nil
}

// sealSecret and openSecret are for single values; an empty one stays empty.
func (h *handle) sealSecret(s *sealer, name, value string) []byte {
	if value == "" {
		return nil
	}
	return s.seal([]byte(value), purpose(h.ID, name))
}

func (h *handle) openSecret(s *sealer, name string, sealed []byte) (string, error) {
	if len(sealed) == 0 {
		return "", nil
	}
	plain, err := s.open(sealed, purpose(h.ID, name))
	if err != nil {
		return "", fmt.Errorf("%w: %s: %w", ErrHandle, name, err)
	}
	return string(plain), nil
}

// fillHandle records what the agent was created with; rec are its overrides, nil for none.
func (a *Agent) fillHandle(rec *spec.Agentfile) {
	h, s := a.handle, a.provider.sealer
	h.Ref, h.Addr, h.ImageRef, h.LocalRuntime = a.ref, a.addr, a.imageRef, a.localRuntime
	h.Mounts, h.Capabilities, h.DaemonURL = a.mounts, a.capabilities, a.daemonURL
	if a.grace != stopGrace {
		ms := a.grace.Milliseconds()
		h.StopGraceMs = &ms
	}
	h.Sandbox, h.AllowNet = a.level, a.allowNet
	if l := a.limits; l != (sandbox.Limits{}) {
		h.Limits = &limits{Memory: l.Memory, CPU: l.CPU, PIDs: l.PIDs}
	}
	h.SealedToken = h.sealSecret(s, "agent token", a.agentToken)
	if rec != nil {
		h.Overrides, h.OverrideMounts = rec.Clone(), rec.Mounts
		h.sealEnvs(s, h.Overrides)
	}
}

// options restore what Create was given.
func (h *handle) options(s *sealer) ([]AgentOption, error) {
	token, err := h.openSecret(s, "agent token", h.SealedToken)
	if err != nil {
		return nil, err
	}
	opts := []AgentOption{WithAddr(h.Addr), WithImageRef(h.ImageRef), WithMounts(h.Mounts), WithCapabilities(h.Capabilities), WithDaemonURL(h.DaemonURL), WithAgentToken(token)}
	if len(h.AllowNet) > 0 {
		opts = append(opts, WithAllowNet(h.AllowNet))
	}
	if h.Sandbox != "" {
		opts = append(opts, WithLevel(h.Sandbox))
	}
	if h.StopGraceMs != nil {
		opts = append(opts, WithStopGrace(time.Duration(*h.StopGraceMs)*time.Millisecond))
	}
	if l := h.Limits; l != nil {
		opts = append(opts, WithLimits(sandbox.Limits{Memory: l.Memory, CPU: l.CPU, PIDs: l.PIDs}))
	}
	if h.LocalRuntime != "" {
		opts = append(opts, WithAgentLocalRuntime(h.LocalRuntime))
	}
	if h.Overrides != nil {
		rec := h.Overrides.Clone()
		rec.Mounts = h.OverrideMounts
		if err := h.openEnvs(s, rec); err != nil {
			return nil, err
		}
		opts = append(opts, WithOverrides(spec.Replay(rec)))
	}
	return opts, nil
}

// hideEnvs empties the values that are sealed elsewhere in the handle.
func (h *handle) hideEnvs(af *spec.Agentfile) {
	for i := range af.Envs {
		if _, ok := h.SealedEnvs[af.Envs[i].Key]; ok {
			af.Envs[i].Value = ""
		}
	}
}

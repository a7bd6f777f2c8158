package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"oras.land/oras-go/v2/errdef"

	"github.com/otters-sh/otters/agentoci"
	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/model"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
	"github.com/otters-sh/otters/sandbox"
	"github.com/otters-sh/otters/spec"
	"github.com/otters-sh/otters/system"
)

const (
	maxEnvs    = 1000
	maxConfigs = 1000
	maxMounts  = 100
	// maxStopTimeout bounds how long a stop may take.
	maxStopTimeout = time.Hour
)

// create records a new agent and starts it. Whatever is wrong with the request is told before
// anything is made; after an error nothing is left.
func (s *supervisor) create(ctx context.Context, req *daemonv1.CreateAgentRequest) (*supervised, error) {
	if s.isDraining() {
		return nil, fail(codes.Unavailable, "", "create agent: %w", errClosed)
	}
	ref, err := parseImage(req.GetImage())
	if err != nil {
		return nil, err
	}
	if err := checkCreate(req); err != nil {
		return nil, err
	}
	policy, err := parseRestart(req.GetRestart())
	if err != nil {
		return nil, err
	}
	img, err := s.loadImage(ctx, ref)
	if err != nil {
		return nil, err
	}
	ref.Digest = img.Descriptor.Digest.String()
	pin, err := s.pinRuntime(ctx, req, img.Agentfile)
	if err != nil {
		return nil, err
	}
	if err := s.checkCapabilities(ctx, req, img.Agentfile); err != nil {
		return nil, err
	}
	name, err := s.claimName(req.GetName(), img.Agentfile.Name)
	if err != nil {
		return nil, err
	}
	modelName := img.Agentfile.Model
	if req.GetModel() != "" {
		modelName = req.GetModel()
	}
	shown := ref
	shown.Digest = ""
	a := newSupervised(s, record{
		id: uuid.New(), name: name, image: shown.String(), digest: ref.Digest, model: modelName,
		created: time.Now(), wantRunning: true, policy: policy,
	})
	if err := s.record(ctx, a, ref, req, append(pin, overrides(req, name)...)); err != nil {
		s.releaseName(name)
		return nil, err
	}
	s.add(a)
	// From here on the agent is there, whatever its start brings and whoever still waits for it.
	if err := a.start(ctx); err != nil && ctx.Err() == nil {
		return nil, err
	}
	return a, nil
}

// record writes the row and makes the agent's folder, side by side since each waits for the disk; a
// failure takes both back. What a crash leaves of the two is put right at the next load: a row
// without a folder is told as such, and a folder that no row names and nothing ran in is removed.
func (s *supervisor) record(ctx context.Context, a *supervised, ref spec.Reference, req *daemonv1.CreateAgentRequest, over []spec.Override) error {
	opts, err := a.createOptions(req)
	if err != nil {
		return err
	}
	hash, err := a.door.grantAhead()
	if err != nil {
		return err
	}
	inserted := make(chan error, 1)
	s.work.Go(func() {
		inserted <- s.db.insertAgent(ctx, record{
			id: a.id, name: a.name, image: a.image, digest: a.digest, model: a.model, created: a.created,
			wantRunning: true, state: state{status: executor.StatusPulling}, tokenHash: hash, policy: a.policy,
		})
	})
	unit, made := s.provider.CreateWithOptions(ctx, a.id, ref, opts, over...)
	if made != nil {
		// It names an id that nobody will ever see again.
		if cause := errors.Unwrap(made); cause != nil {
			made = fmt.Errorf("create agent %s: %w", a.name, cause)
		}
		if errors.Is(made, system.ErrConfig) {
			made = &failure{code: codes.InvalidArgument, err: made}
		}
	}
	stored := <-inserted
	if made == nil && stored == nil {
		a.adopt(unit)
		return nil
	}
	s.gateway.Revoke(a.id)
	// A client that goes away does not leave half an agent, nor a row that was written after all.
	undo := context.WithoutCancel(ctx)
	err = errors.Join(made, stored, s.db.deleteAgent(undo, a.id))
	if made == nil {
		return errors.Join(err, unit.Remove(undo))
	}
	return err
}

// createOptions are what the request asks of the executor.
func (a *supervised) createOptions(req *daemonv1.CreateAgentRequest) ([]system.AgentOption, error) {
	opts := a.options()
	allowNet, err := destinations(req)
	if err != nil {
		return nil, err
	}
	if len(allowNet) > 0 {
		opts = append(opts, system.WithAllowNet(allowNet))
	}
	if level := req.GetSandbox(); level != "" {
		opts = append(opts, system.WithLevel(sandbox.Level(level)))
	}
	opts = append(opts, system.WithLimits(limitsOf(req)))
	if p := req.GetRuntimePath(); p != "" {
		opts = append(opts, system.WithAgentLocalRuntime(p))
	}
	if given := req.GetMounts(); len(given) > 0 {
		mounts := make([]executor.Mount, len(given))
		for i, m := range given {
			mounts[i] = executor.Mount{Host: filepath.Clean(m.GetHost()), Target: m.GetTarget(), Description: m.GetDescription(), ReadOnly: m.GetReadOnly()}
		}
		opts = append(opts, system.WithMounts(mounts))
	}
	if req.StopTimeoutMs != nil {
		opts = append(opts, system.WithStopGrace(time.Duration(req.GetStopTimeoutMs())*time.Millisecond))
	}
	return opts, nil
}

// parseImage reads a reference; without tag and digest it is :latest.
func parseImage(image string) (spec.Reference, error) {
	if image == "" {
		return spec.Reference{}, fail(codes.InvalidArgument, "", "no image is named: want name[:tag][@digest]")
	}
	ref, err := spec.ParseReference(image)
	if err != nil {
		return spec.Reference{}, &failure{code: codes.InvalidArgument, err: err}
	}
	return ref.WithDefaultTag("latest"), nil
}

func checkCreate(req *daemonv1.CreateAgentRequest) error {
	if req.GetName() != "" {
		if err := checkName(req.GetName()); err != nil {
			return err
		}
	}
	if req.GetModel() != "" {
		if _, err := model.ParseRef(req.GetModel()); err != nil {
			return &failure{code: codes.InvalidArgument, err: err}
		}
	}
	if l := req.GetSandbox(); l != "" && !slices.Contains(levels, sandbox.Level(l)) {
		return fail(codes.InvalidArgument, "", "sandbox level %s: want off, limited or strict", clip(l))
	}
	if n := len(req.GetEnvs()); n > maxEnvs {
		return fail(codes.InvalidArgument, "", "%d environment variables: at most %d can be given", n, maxEnvs)
	}
	if n := len(req.GetConfigs()); n > maxConfigs {
		return fail(codes.InvalidArgument, "", "%d settings: at most %d can be given", n, maxConfigs)
	}
	if ms := req.GetStopTimeoutMs(); ms < 0 || ms > maxStopTimeout.Milliseconds() {
		return fail(codes.InvalidArgument, "", "stop timeout of %d ms: want 0 to %s", ms, maxStopTimeout)
	}
	if err := checkMounts(req.GetMounts()); err != nil {
		return err
	}
	if err := limitsOf(req).Check(); err != nil {
		return &failure{code: codes.InvalidArgument, err: err}
	}
	if _, err := destinations(req); err != nil {
		return err
	}
	if p := req.GetRuntimePath(); p != "" {
		return checkRuntimePath(p)
	}
	return nil
}

func limitsOf(req *daemonv1.CreateAgentRequest) sandbox.Limits {
	return sandbox.Limits{Memory: req.GetMemoryLimit(), CPU: req.GetCpuLimit(), PIDs: req.GetPidsLimit()}
}

// checkMounts refuses what no executor could do; what the agent's level can't is for it to say.
func checkMounts(mounts []*daemonv1.Mount) error {
	if n := len(mounts); n > maxMounts {
		return fail(codes.InvalidArgument, "", "%d mounts: at most %d can be given", n, maxMounts)
	}
	seen := make(map[string]bool)
	for _, m := range mounts {
		bad := func(why string) error {
			return fail(codes.InvalidArgument, "", "mount %s at %s: %s", clip(m.GetHost()), clip(m.GetTarget()), why)
		}
		target := path.Clean("/" + m.GetTarget())
		switch {
		case !filepath.IsAbs(m.GetHost()):
			return bad("the host's path is not absolute")
		case target == "/":
			return bad("it has no target")
		case seen[target]:
			return bad("the target is there twice")
		case strings.ContainsAny(m.GetHost()+m.GetTarget()+m.GetDescription(), "\x00\r\n"):
			return bad("it has a line break or a NUL in it")
		}
		seen[target] = true
		if _, err := os.Stat(m.GetHost()); errors.Is(err, fs.ErrNotExist) {
			return bad("there is no such file or folder on the daemon's machine")
		}
	}
	return nil
}

func checkRuntimePath(p string) error {
	bad := func(why string) error {
		return fail(codes.InvalidArgument, "give the absolute path of an executable file on the daemon's machine", "runtime %s: %s", clip(p), why)
	}
	if !filepath.IsAbs(p) {
		return bad("is not an absolute path")
	}
	info, err := os.Stat(p)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return bad("no such file")
	case err != nil:
		return bad(errors.Unwrap(err).Error())
	case !info.Mode().IsRegular():
		return bad("is not a regular file")
	case info.Mode().Perm()&0o111 == 0 || unix.Access(p, unix.X_OK) != nil:
		return bad("is not executable")
	}
	return nil
}

func (s *supervisor) loadImage(ctx context.Context, ref spec.Reference) (*agentoci.Image, error) {
	if err := s.images.ensure(ctx, ref, nil); err != nil {
		return nil, err
	}
	img, err := agentoci.Load(ctx, s.images.store, storeName(ref))
	switch {
	case errors.Is(err, errdef.ErrNotFound), errors.Is(err, executor.ErrRefNotFound):
		return nil, fail(codes.NotFound, "`otters images` lists the images there are, `otters build -t "+ref.Name+" DIR` makes one", "image %s: not in the registry", ref)
	case err != nil:
		return nil, &failure{code: codes.InvalidArgument, err: fmt.Errorf("image %s: %w", ref, err)}
	}
	// Asked for, it stays through the grace of a collection, until a record names it.
	if _, err := s.images.store.Exists(ctx, img.Descriptor); err != nil {
		return nil, fmt.Errorf("image %s: %w", ref, err)
	}
	return img, nil
}

// pinRuntime names the daemon's own runtime, by digest, for an image that names none.
func (s *supervisor) pinRuntime(ctx context.Context, req *daemonv1.CreateAgentRequest, def *spec.Agentfile) ([]spec.Override, error) {
	if req.GetRuntimePath() != "" || def.Runtime != "" {
		return nil, nil
	}
	desc, err := s.images.store.Resolve(ctx, runtimeImage+":latest")
	if errors.Is(err, errdef.ErrNotFound) {
		return nil, fail(codes.FailedPrecondition, "put "+runtimeProgram+" beside ottersd and start the daemon again, or give one with --runtime",
			"the image names no runtime, and the daemon has none of its own: %s was not found", runtimeProgram)
	}
	if err != nil {
		return nil, err
	}
	return []spec.Override{spec.WithRuntime(spec.Reference{Name: runtimeImage, Tag: "latest", Digest: desc.Digest.String()}.String())}, nil
}

// checkCapabilities refuses a capability that the runtime does not provide. What a runtime that is not
// here yet provides is known once it is pulled, and what one given by its path does when it starts.
func (s *supervisor) checkCapabilities(ctx context.Context, req *daemonv1.CreateAgentRequest, def *spec.Agentfile) error {
	if len(def.Capabilities) == 0 || req.GetRuntimePath() != "" {
		return nil
	}
	name := def.Runtime
	if name == "" {
		name = runtimeImage + ":latest"
	}
	ref, err := spec.ParseReference(name)
	if err != nil {
		return nil // the start says so, as it does without capabilities
	}
	if _, err := s.images.store.Resolve(ctx, storeName(ref.WithDefaultTag("latest"))); err != nil {
		return nil
	}
	labels, err := agentoci.NewLabelReader(s.images.opener, agentoci.BinOptions{})(ctx, ref.WithDefaultTag("latest"))
	if err != nil {
		return nil
	}
	if err := system.CheckCapabilities(labels, def.Capabilities); err != nil {
		return &failure{code: codes.InvalidArgument, err: err}
	}
	return nil
}

// overrides turns the request into changes of the image's definition.
func overrides(req *daemonv1.CreateAgentRequest, name string) []spec.Override {
	out := []spec.Override{func(a *spec.Agentfile) { a.Name = name }}
	if m := req.GetModel(); m != "" {
		out = append(out, spec.WithModel(m))
	}
	for _, key := range slices.Sorted(maps.Keys(req.GetConfigs())) {
		out = append(out, spec.WithConfig(key, req.GetConfigs()[key]))
	}
	if len(req.GetEnvs()) > 0 {
		envs := make([]spec.Env, 0, len(req.GetEnvs()))
		for _, e := range req.GetEnvs() {
			envs = append(envs, spec.Env{Key: e.GetKey(), Value: e.GetValue()})
		}
		out = append(out, spec.WithExtraEnvs(envs...))
	}
	return out
}

// remove ends an agent for good: its folder, its log, its row and its token.
func (a *supervised) remove(ctx context.Context, force bool) error {
	a.mu.Lock()
	running := a.run != nil && !a.run.ended
	switch {
	case a.removing:
		a.mu.Unlock()
		return fail(codes.FailedPrecondition, "", "agent %s is being removed already", a.name)
	case running && !force:
		a.mu.Unlock()
		return fail(codes.FailedPrecondition, "stop it first with `otters stop "+a.name+"`, or remove it with --force", "agent %s is running", a.name)
	}
	a.removing = true
	a.mu.Unlock()
	err := a.stop(ctx)
	if err == nil || diskFull(err) { // then it is stopped, and its removal makes room
		// A client that goes away does not leave half an agent.
		err = a.erase(context.WithoutCancel(ctx))
	}
	if err != nil {
		a.mu.Lock()
		a.removing = false
		a.mu.Unlock()
	}
	return err
}

// erase deletes a stopped agent. The row says removing before the folder goes, so that the next
// daemon ends a removal that was cut short; where the disk is full it shows the agent without a folder.
func (a *supervised) erase(ctx context.Context) error {
	s := a.sup
	before, started := a.state()
	if err := s.db.setState(ctx, a.id, state{status: executor.StatusRemoving}, started); err != nil && !diskFull(err) {
		return fmt.Errorf("remove agent %s: %w", a.name, err)
	}
	if err := a.eraseFiles(ctx); err != nil {
		return errors.Join(fmt.Errorf("remove agent %s: %w", a.name, err), s.db.forceState(ctx, a.id, before, started))
	}
	s.gateway.Revoke(a.id)
	a.removeLogs()
	if err := s.db.deleteAgent(ctx, a.id); err != nil {
		return fmt.Errorf("remove agent %s: %w", a.name, err)
	}
	a.mu.Lock()
	a.tell(state{status: executor.StatusRemoved})
	a.mu.Unlock()
	s.forget(a)
	return nil
}

func (a *supervised) removeLogs() {
	a.logMu.Lock()
	defer a.logMu.Unlock()
	for _, path := range logNames(a.sup.logPath(a.id), maxLogFiles) {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			a.sup.logger.Warn("log not removed", "agent", a.id, "error", err)
		}
	}
	a.sup.logs.forget(a.id)
}

func (a *supervised) eraseFiles(ctx context.Context) error {
	if a.unit == nil {
		return a.sup.removeFolder(a.id)
	}
	if err := a.unit.Remove(ctx); err != nil {
		return err
	}
	// The observer ends after removed, and nothing of this agent writes to the database any more.
	<-a.observed
	return nil
}

// removeFolder deletes what is left of an agent that could not be restored. The agent could write
// below it, so it goes through a descriptor of the folder above.
func (s *supervisor) removeFolder(id uuid.UUID) error {
	root, err := os.OpenRoot(s.home.path("agents"))
	if err != nil {
		return err
	}
	defer root.Close()
	return root.RemoveAll(id.String())
}

func (s *supervisor) logPath(id uuid.UUID) string {
	return s.home.path("logs", id.String()+".log")
}

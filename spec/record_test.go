package spec_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/otters-sh/otters/spec"
)

// Invariant: what was recorded does, even after JSON, to any definition what the overrides do to it. The
// worst inputs: a RUNTIME, which in a file would drop the settings; a setting that the definition
// describes; one override after the other of the same key.

func TestWhatIsReplayedDoesWhatWasRecorded(t *testing.T) {
	t.Parallel()
	overrides := []spec.Override{
		spec.WithRuntime("otters/another"), spec.WithModel("offline/other"),
		spec.WithConfig("temperature", "1.1"), spec.WithConfig("region", "a"), spec.WithConfig("region", "b"),
		spec.WithExtraEnvs(spec.Env{Key: "GREETING", Value: "hello"}, spec.Env{Key: "NEW", Value: "x", Description: "new"}),
		func(a *spec.Agentfile) { a.Exec, a.Name = []string{"serve", "--fast"}, "renamed" },
	}
	def, err := spec.Parse("Agentfile", []byte("FROM scratch\nRUNTIME otters/runtime\nCONFIG temperature=0.5 \"how wild\"\nCONFIG region! \"where\"\nENV GREETING=hi \"what to say\"\n"), spec.ParseOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want, err := def.Apply(overrides...)
	if err != nil {
		t.Fatal(err)
	}
	rec, err := spec.Record(overrides...)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(rec)
	if err != nil {
		t.Fatal(err)
	}
	kept := new(spec.Agentfile)
	if err := json.Unmarshal(text, kept); err != nil {
		t.Fatal(err)
	}
	for range 2 { // It may be replayed again and again.
		got, err := def.Apply(spec.Replay(kept))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("replayed (-want +got):\n%s", d)
		}
		*got.Configs[0].Value = "changed by its owner"
	}
}

func TestOverridesAreCheckedWhenTheyAreRecorded(t *testing.T) {
	t.Parallel()
	if _, err := spec.Record(spec.WithModel("no-slash")); err == nil {
		t.Error("a model without a provider was recorded")
	}
	if rec, err := spec.Record(spec.WithModel("a/b")); err != nil || rec.Model != "a/b" || rec.From != "" {
		t.Errorf("%+v, %v", rec, err)
	}
}

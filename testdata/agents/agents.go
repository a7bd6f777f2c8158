// Package agents is the agents of the demo and the tests, as folders to build from, so that a
// program that was installed alone can still show one.
package agents

import "embed"

// Guide holds the folder guide: the Agentfile of the demo, what it is built from, and prompts.txt, which
// has one prompt a line that the agent can answer with the offline model.
//
//go:embed guide
var Guide embed.FS

package agentoci

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/otters-sh/otters/spec"
)

// secretFiles are names under which keys and passwords usually lie.
var secretFiles = []string{
	".env", ".env.*", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ovpn",
	"id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", ".netrc", "_netrc", ".npmrc", ".pypirc", ".pgpass", ".htpasswd",
	".git-credentials", ".dockerconfigjson", "credentials", "credentials.*", "kubeconfig", "providers.yaml",
	"secret", "secrets", "secret.*", "secrets.*", "token", "*.token", "service-account*.json",
}

// maxWarnings is how many warnings of a build are told; more help nobody.
const maxWarnings = 100

// secretKeys match the ENV and ARG keys that usually hold one.
var secretKeys = regexp.MustCompile(`(?i)(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|PRIVATE_KEY|ACCESS_KEY|APIKEY|API_KEY)(_|$)`)

// warnings names what looks like a secret and is about to be readable by everyone who can pull. Only
// names are looked at, and no value is printed.
//
// inSkills are files of skills: what each has the name of, and its path.
func warnings(own *spec.Agentfile, inSkills []spec.Add) []string {
	var out []string
	file := func(instruction, name, src string, secret bool) {
		if secret {
			out = append(out, fmt.Sprintf("%s %s: %s looks like a secret, and everyone who can pull the image can read it; give it at deploy, with a mount or -e", instruction, name, src))
		}
	}
	for _, d := range own.Adds {
		file("ADD", d.Name, d.Src, secretFile(d.Src) || secretFile(d.Name))
	}
	for _, d := range inSkills {
		file("ADD", d.Name, d.Src, secretFile(d.Src))
	}
	for _, c := range own.Contexts {
		if c.File != "" {
			file("CONTEXT", c.Name, c.File, secretFile(c.File) || secretFile(c.Name))
		}
	}
	key := func(instruction, key, value string) {
		if value != "" && secretKeys.MatchString(key) {
			out = append(out, fmt.Sprintf("%s %s looks like a secret, and everyone who can pull the image can read it; give it at deploy, with -e", instruction, key))
		}
	}
	for _, e := range own.Envs {
		key("ENV", e.Key, e.Value)
	}
	for _, a := range own.Args {
		key("ARG", a.Key, a.Value)
	}
	return out
}

// fewWarnings are the first of all, and how many more there are: an answer with the rest has no bound.
func fewWarnings(all []string) []string {
	if len(all) <= maxWarnings {
		return all
	}
	return append(all[:maxWarnings:maxWarnings], fmt.Sprintf("and %d more warnings", len(all)-maxWarnings))
}

func secretFile(name string) bool {
	base := strings.ToLower(path.Base(name))
	return slices.ContainsFunc(secretFiles, func(pattern string) bool {
		ok, err := path.Match(pattern, base)
		return ok && err == nil
	})
}

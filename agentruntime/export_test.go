package agentruntime

import "reflect"

// KnownKeys are the CONFIG keys.
var KnownKeys = knownKeys

// SameSettings tells whether configs change nothing.
func SameSettings(configs map[string]string) (bool, error) {
	s, err := readSettings(configs)
	def, derr := readSettings(nil)
	if err == nil {
		err = derr
	}
	return reflect.DeepEqual(s, def), err
}

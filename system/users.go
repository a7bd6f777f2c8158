package system

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// Agents of a root daemon get user ids from one of these ranges, the first that the host maps: the
// first lies above what systemd and container engines hand out
// (https://systemd.io/UIDS-GIDS), the second is for hosts that are containers with 65,536 ids, and
// lies between the ids for people and those of systemd's DynamicUser.
var userRanges = []userRange{{0x70000000, 0x7000ffff}, {60600, 61183}}

// userRange is inclusive at both ends.
type userRange struct{ first, last int }

// freeUser is the lowest user id of the first range the host maps that is not taken.
func freeUser(taken map[int]bool) (int, error) {
	f, err := os.Open("/proc/self/uid_map")
	if err != nil {
		// A system without user namespaces maps every id.
		return lowest(userRanges[0], taken)
	}
	defer f.Close()
	for _, r := range userRanges {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return -1, err
		}
		if maps(f, r) {
			return lowest(r, taken)
		}
	}
	return -1, errors.New("no user id for the agent: this host maps neither of the ranges for agents; give its user namespace at least 65,536 ids")
}

// maps tells whether a uid_map (user_namespaces(7)) has the whole range in one line.
func maps(m io.Reader, r userRange) bool {
	for {
		var inside, outside, count int
		if _, err := fmt.Fscan(m, &inside, &outside, &count); err != nil {
			return false
		}
		if inside <= r.first && r.last < inside+count {
			return true
		}
	}
}

func lowest(r userRange, taken map[int]bool) (int, error) {
	for id := r.first; id <= r.last; id++ {
		if !taken[id] {
			return id, nil
		}
	}
	return -1, fmt.Errorf("no user id for the agent: all %d are taken", r.last-r.first+1)
}

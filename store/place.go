package store

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/adrg/xdg"
)

// place is where the records are.
type place struct {
	run   string // R
	state string // S
	why   string // the rule that chose R
}

const dirName = "smol-mcp"

// candidate is a directory that R may be.
type candidate struct {
	dir, rule string
	private   bool // its parent has to be private to this user too
}

// find resolves R and S once, and makes and checks R. A failure is not kept:
// the next call tries again. With ReadOnly R may not be there yet: then root
// is nil.
func (s *Store) find() (place, error) {
	s.placeMu.Lock()
	defer s.placeMu.Unlock()
	return s.findLocked()
}

// runDir returns R, when it was found.
func (s *Store) runDir() string {
	s.placeMu.Lock()
	defer s.placeMu.Unlock()
	return s.place.run
}

func (s *Store) findLocked() (place, error) {
	if s.root != nil {
		if now, err := os.Lstat(s.place.run); err == nil && os.SameFile(s.rootIs, now) {
			return s.place, nil
		}
	}
	if s.root != nil { // wiped or replaced under us
		s.root.Close()
		s.root = nil
	}
	state, stateErr := s.stateDir()
	if s.opts.RuntimeDir != "" {
		rule := "the setting runtimeDir or SMOL_MCP_RUNTIME_DIR"
		root, err := openPrivate(s.opts.RuntimeDir, false, !s.opts.ReadOnly)
		if err != nil && !errors.Is(err, errAbsent) {
			return place{}, fmt.Errorf("%w: %s: %w", ErrPlace, rule, err)
		}
		return s.settleOn(root, place{run: s.opts.RuntimeDir, state: state, why: rule})
	}
	var refusals []string
	for _, c := range s.candidates(state, stateErr) {
		root, err := openPrivate(c.dir, c.private, !s.opts.ReadOnly)
		if err != nil && !errors.Is(err, errAbsent) {
			refusals = append(refusals, c.rule+": "+err.Error())
			continue
		}
		why := c.rule
		if len(refusals) > 0 {
			why += " (not " + strings.Join(refusals, "; not ") + ")"
		}
		return s.settleOn(root, place{run: c.dir, state: state, why: why})
	}
	if stateErr != nil {
		refusals = append(refusals, stateErr.Error())
	}
	return place{}, fmt.Errorf("%w: %s", ErrPlace, strings.Join(refusals, "; "))
}

// settleOn makes root, which is nil when R is not there yet, the place.
func (s *Store) settleOn(root *os.Root, p place) (place, error) {
	if root != nil {
		fi, err := root.Stat(".")
		if err != nil {
			root.Close()
			return place{}, err
		}
		s.rootIs = fi
	}
	s.root, s.place = root, p
	return p, nil
}

// candidates lists what R may be, best first. The temporary directory is never
// among them: anybody may have made a directory there before us.
func (s *Store) candidates(state string, stateErr error) []candidate {
	var cs []candidate
	if runtime.GOOS == "linux" { // elsewhere these outlive the boot
		uid := fmt.Sprintf("/run/user/%d", os.Geteuid())
		rule := "XDG_RUNTIME_DIR"
		if xdg.RuntimeDir != uid {
			cs = append(cs, candidate{filepath.Join(xdg.RuntimeDir, dirName), rule, true})
		}
		cs = append(cs, candidate{filepath.Join(uid, dirName), uid, true})
	}
	if stateErr == nil && s.host.BootID != "" {
		cs = append(cs, candidate{filepath.Join(state, "run", bootName(s.host.BootID)), "the state directory", true})
	}
	return cs
}

// bootName is short, since a socket in the directory has room for a hundred bytes
// of path; two boots of one computer that share it are told apart by the state file.
func bootName(id string) string {
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:4])
}

// stateDir returns S, which need not exist.
func (s *Store) stateDir() (string, error) {
	home := s.opts.StateDir
	if home == "" {
		home = xdg.StateHome
		// without a home, xdg takes the root directory for it
		if xdg.Home == "" || filepath.Dir(xdg.Home) == xdg.Home && strings.HasPrefix(home, filepath.Join(xdg.Home, ".local")) {
			return "", fmt.Errorf("%w: no home directory: set HOME or XDG_STATE_HOME", ErrPlace)
		}
	}
	return filepath.Join(home, dirName, "hosts", s.host.hash()), nil
}

// errAbsent: a directory that would be made is not there, and must not be made.
var errAbsent = errors.New("the directory was not made yet")

// errReplaced: a directory was wiped or replaced while it was looked at.
var errReplaced = errors.New("it was replaced while it was opened")

// wiped reports whether an error means that a directory went away under the work, which is
// to be tried again in a new one.
func wiped(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrClosed) || errors.Is(err, errReplaced)
}

// openPrivate opens dir when it is a real directory of this user alone. With
// create it is made first, with its missing parents.
func openPrivate(dir string, privateParent, create bool) (root *os.Root, err error) {
	for range maxWiped {
		if root, err = openOnce(dir, privateParent, create); !errors.Is(err, errReplaced) {
			break
		}
	}
	return root, err
}

func openOnce(dir string, privateParent, create bool) (*os.Root, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("%s is not an absolute path", dir)
	}
	if err := ownerOfNearest(dir); err != nil {
		return nil, err
	}
	parent := filepath.Dir(dir)
	if privateParent && strings.HasPrefix(dir, "/run/user/") || isRuntimeDir(parent) {
		// the login makes it; where there is no login there is none
		if _, err := os.Lstat(parent); err != nil {
			return nil, err
		}
	}
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) && !create {
		return nil, errAbsent
	}
	if create {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	if err := checkDir(parent, privateParent); err != nil {
		return nil, err
	}
	if err := checkDir(dir, true); err != nil {
		return nil, err
	}
	if ok, kind := trustedFS(dir); !ok {
		return nil, fmt.Errorf("%s is on %s, whose locks cannot be trusted", dir, kind)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	if !sameDir(root, dir) {
		root.Close()
		return nil, fmt.Errorf("%s: %w", dir, errReplaced)
	}
	return root, nil
}

func isRuntimeDir(dir string) bool { return xdg.RuntimeDir != "" && dir == xdg.RuntimeDir }

// checkDir refuses a directory that another user could have made or can
// change. A private one nobody else may even list.
func checkDir(dir string, private bool) error {
	fi, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if fi.Mode().Type() != fs.ModeDir {
		return fmt.Errorf("%s is not a directory but %s", dir, typeName(fi.Mode()))
	}
	if err := checkOwner(fi); err != nil && (private || !ownedByRoot(fi)) {
		return fmt.Errorf("%s %w", dir, err)
	}
	if runtime.GOOS == "windows" { // modes say nothing there
		return nil
	}
	perm := fi.Mode().Perm()
	switch {
	case private && perm&0o077 != 0:
		return fmt.Errorf("%s has mode %04o, others can enter it: chmod 700 it", dir, perm)
	case !private && perm&0o022 != 0 && fi.Mode()&fs.ModeSticky == 0:
		return fmt.Errorf("%s has mode %04o, others can replace what is in it", dir, perm)
	}
	return nil
}

// ownerOfNearest refuses to make directories in somebody else's.
func ownerOfNearest(dir string) error {
	for {
		fi, err := os.Lstat(dir)
		if err == nil {
			if err := checkOwner(fi); err != nil && fi.Mode()&fs.ModeSticky == 0 {
				return fmt.Errorf("%s %w", dir, err)
			}
			return nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		up := filepath.Dir(dir)
		if up == dir {
			return err
		}
		dir = up
	}
}

func typeName(m fs.FileMode) string {
	switch m.Type() {
	case 0:
		return "a regular file"
	case fs.ModeDir:
		return "a directory"
	case fs.ModeSymlink:
		return "a symbolic link"
	case fs.ModeNamedPipe:
		return "a named pipe"
	case fs.ModeSocket:
		return "a socket"
	}
	return "a device"
}

// sameDir reports whether root is what lies at path now.
func sameDir(root *os.Root, path string) bool {
	a, err := root.Stat(".")
	if err != nil {
		return false
	}
	b, err := os.Lstat(path)
	return err == nil && os.SameFile(a, b)
}

// checkFile refuses a file that is not ours alone: another owner, other names
// (hard links), modes that let others in, or not a regular file.
func checkFile(fi fs.FileInfo, path string) error {
	if !fi.Mode().IsRegular() {
		return fmt.Errorf("%w: %s is not a regular file but %s", ErrPlace, path, typeName(fi.Mode()))
	}
	if err := checkOwner(fi); err != nil {
		return fmt.Errorf("%w: %s %w", ErrPlace, path, err)
	}
	if runtime.GOOS != "windows" && fi.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%w: %s has mode %04o, others can enter it: chmod 600 it", ErrPlace, path, fi.Mode().Perm())
	}
	if n := links(fi); n > 1 {
		return fmt.Errorf("%w: %s has %d names (hard links)", ErrPlace, path, n)
	}
	return nil
}

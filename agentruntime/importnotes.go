package agentruntime

import (
	"errors"
	"fmt"
	"os"
)

func (im *importer) note(line []byte) error {
	var l exportNote
	if err := decode(line, &l); err != nil {
		return err
	}
	im.noted = true
	if err := checkKey(l.Key); err != nil {
		return bad("%w", err)
	}
	if len(l.Content) > maxNoteBytes {
		return bad("note %s is longer than %d bytes", l.Key, maxNoteBytes)
	}
	if im.counts.Notes >= maxNoteCount {
		return bad("more than %d notes", maxNoteCount)
	}
	if err := notNegative(l.CreatedAt, l.UpdatedAt); err != nil {
		return err
	}
	if err := im.once(noteLine, l.Key); err != nil {
		return err
	}
	if im.replace {
		if err := im.exec("DELETE FROM notes WHERE key = ?", l.Key); err != nil {
			return err
		}
	}
	im.counts.Notes++
	err := im.unique("", "INSERT INTO notes (key, content, in_context, created_at, updated_at) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
		l.Key, l.Content, l.InContext, l.CreatedAt, l.UpdatedAt)
	if errors.Is(err, ErrInput) {
		return fmt.Errorf("note %s: %w: there is one already; have it replaced, or remove it first", l.Key, ErrExists)
	}
	return err
}

// quota checks the notes there are now against agent.yaml, where some were imported.
func (im *importer) quota() error {
	if im.counts.Notes == 0 {
		return nil
	}
	limits, err := noteQuota(im.root)
	if err != nil {
		return err
	}
	var count, longest int
	if err := im.tx.QueryRowContext(im.ctx, "SELECT count(*), max(length(CAST(content AS BLOB))) FROM notes").Scan(&count, &longest); err != nil {
		return err
	}
	if count > limits.count {
		return fmt.Errorf("notes: %w: there would be %d, at most %d are kept (notes-max-count)", ErrExists, count, limits.count)
	}
	if longest > limits.bytes {
		return fmt.Errorf("notes: %w: one has %d bytes, at most %d are taken (notes-max-bytes-per)", ErrExists, longest, limits.bytes)
	}
	return nil
}

// noteQuota reads the quotas that CONFIG sets.
func noteQuota(dir string) (noteLimits, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return noteLimits{}, err
	}
	defer root.Close()
	_, set, err := readConfig(root)
	return set.notes, err
}

package fleet

// Served reports whether there is an engine without starting one: this process
// has used it, or it is one that another of our processes started and that
// lives.
func (e *Engine) Served() bool {
	e.mu.Lock()
	used := e.now != nil
	e.mu.Unlock()
	if used {
		return true
	}
	dir, err := e.opts.Dir()
	if err != nil {
		return false
	}
	rec, err := readRecord(dir)
	return err == nil && rec.alive()
}

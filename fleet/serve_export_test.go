package fleet

// SetUsual says where e looks for a smolvm serve of the user.
func SetUsual(e *Engine, sockets ...string) {
	e.usual = func() (list []address) {
		for _, s := range sockets {
			list = append(list, address{"unix", s, true})
		}
		return list
	}
}

// Package cli is the program: its command line, settings, servers and operator's commands. It
// is a package so that two programs can be it.
//
// Without a command the program serves one client on standard input and output. Start
// reading at [runServe], which wires a session together, and [life], which ends it;
// [runHTTP] serves many clients. [settings] is the table of everything that can be set,
// [commands] the table of everything that can be asked of the program.
package cli

// Package fleettest holds what tests of fleets share: stand-ins of the
// services, not of our interfaces. [StartSmolvm] is a smolvm server within the test,
// [BuildSmolvm] the same as an executable, and their machines are [Guest]s,
// in which commands really run. [StartCloud] and [BuildCloud] are the same for
// smol cloud.
package fleettest

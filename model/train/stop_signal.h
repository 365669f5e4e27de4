#pragma once

namespace zs {

/// Asks the process to stop in order on SIGINT, SIGTERM and SIGUSR1: the first sets a flag that the training loop reads
/// between steps, a second one of SIGINT or SIGTERM ends the process at once. A process has one such flag because a signal has
/// one handler; install once, in main. SIGXFSZ and SIGPIPE are ignored: the write that met them reports it.
void install_stop_signals();
bool is_stop_requested();

}  // namespace zs

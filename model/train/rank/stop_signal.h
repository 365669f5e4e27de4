#pragma once

namespace zs {

/// Asks the process to stop in order on SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 (batch systems send one of the
/// last two ahead of the job's end): the first sets a flag that the training loop reads between micro-batches, a second
/// SIGINT or SIGTERM ends the process at once. SIGHUP stays ignored where it was, by nohup. A process has one such flag
/// because a signal has one handler; install once, early in main. SIGXFSZ and SIGPIPE are ignored: the
/// write that met them reports it.
void install_stop_signals();
/// Holds these signals back until `install_stop_signals`, also where the program starts itself again in between: a
/// launcher may send one at any time. The first thing of main.
void hold_stop_signals();
/// For what is short, and asks nobody: signals mean again what they meant before; one that has come already ends the
/// process now.
void release_stop_signals();
bool is_stop_requested();
/// From here on SIGINT, any number of them, asks for the end of what runs and not of the process.
void interrupt_by_sigint();
/// True if one has come since this was asked last.
bool take_interrupt();

}  // namespace zs

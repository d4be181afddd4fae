// Second stacks for signal handlers, on which they run when a thread's own stack is exhausted.
#pragma once

namespace chassis {

// Gives the calling thread, the first one, its second stack. From now on, other threads get theirs too.
void begin_signal_stacks();

// [any] Gives the calling thread a second stack. Cheap after the first call; does nothing before begin_signal_stacks().
void install_signal_stack() noexcept;

}  // namespace chassis

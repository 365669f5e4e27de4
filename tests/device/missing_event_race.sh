#!/bin/sh
# TSan reports the missing event (exit 66), and nothing when the event is there.
export TSAN_OPTIONS="ignore_noninstrumented_modules=1 exitcode=66"
"$1" ordered || { echo "the ordered program was reported"; exit 1; }
"$1" missing
code=$?
[ "$code" = 66 ] || { echo "the missing event was not reported: exit $code"; exit 1; }

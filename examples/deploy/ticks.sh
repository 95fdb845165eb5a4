#!/bin/sh
# Starts a tick each minute, as cron would, in a container that keeps running. Unlike cron, it needs no root and has the
# container's environment. SIGTERM ends the tick and the long jobs, releases their jobs, and then ends this script.
export TICKS_OF=$$
stop=
pid=
passed_on=
trap 'stop=1; [ -n "$pid" ] && kill -TERM "$pid" && passed_on=1' TERM INT

finish() { # wait for $pid; a signal may interrupt the first wait, so wait again
    if [ -n "$stop" ] && [ -z "$passed_on" ]; then # the signal arrived before the script knew pid
        sleep 1 # wait until the new process runs its program, because a shell may swallow the signal before that
        kill -TERM "$pid"
    fi
    wait "$pid"
    while kill -0 "$pid" 2>/dev/null; do wait "$pid"; done
    pid=
}

# Prints the processes of long jobs, which outlive their ticks. Leaves out processes that another script started.
long_jobs() {
    for each in $(grep -lzx 'cronjobs\.engine\.tick\.long_job_process' /proc/[0-9]*/cmdline 2>/dev/null | cut -d/ -f3); do
        grep -qzx "TICKS_OF=$$" "/proc/$each/environ" 2>/dev/null && echo "$each"
    done
}

while [ -z "$stop" ]; do
    sleep $((60 - $(date +%s) % 60)) &
    pid=$!
    finish
    [ -n "$stop" ] && break
    cronjobs run-due --fail-on never &
    pid=$!
    finish
done

for each in $(long_jobs); do kill -TERM "$each"; done
while [ -n "$(long_jobs)" ]; do sleep 1; done

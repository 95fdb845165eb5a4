#!/bin/sh
# Starts a tick each minute in a container that stays, as cron would, but without root and with the container's
# environment. SIGTERM ends the tick and the long jobs, whose jobs go back to the queue, and then this script.
export TICKS_OF=$$
stop=
pid=
passed_on=
trap 'stop=1; [ -n "$pid" ] && kill -TERM "$pid" && passed_on=1' TERM INT

finish() { # wait again if a signal has interrupted the first wait
    if [ -n "$stop" ] && [ -z "$passed_on" ]; then # the signal came before pid was known
        sleep 1 # until the new process runs its program: before that, a shell may swallow the signal
        kill -TERM "$pid"
    fi
    wait "$pid"
    while kill -0 "$pid" 2>/dev/null; do wait "$pid"; done
    pid=
}

long_jobs() { # each has a process of its own, which outlives its tick; leave out those that another script started
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

"""The calls that an app uses: @job, enqueue, Context, effects, transactions."""

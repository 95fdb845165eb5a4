"""What an app uses: @job, enqueue, Context, effects, transactions."""

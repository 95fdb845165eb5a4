"""What an app touches: @job, enqueue, Context, effects, transactions."""

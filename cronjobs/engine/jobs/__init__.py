"""The API that apps call: @job, enqueue, Context, effects and transactions."""

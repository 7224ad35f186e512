# First run: which token is the last to rescale?
stop-at score if input.layer == 2 && input.first_head == 0 && t == 0
run
set $state = &heads[0].softmax
set $token = -1
stop-at weights if this == $state && step.rescaled
set $search = $bpnum
commands
  silent
  up-silently
  set $token = t
  continue
end
stop-at normalise if input.layer == 2 && input.first_head == 0
continue
answer last_rescale_token $token

# Second run: stop at this token, and predict.
delete $search
stop-at score if input.layer == 2 && input.first_head == 0 && t == $token
run
continue
set $state = &heads[0].softmax
softmax-state
set $M = heads[0].softmax.M
set $S = heads[0].softmax.S
stop-at rescale if this == $state
continue
tile
expect m > M
set $c = $exp($M - m)
set $predicted = $S * $c + 1
answer M_before $M
answer M_after m

# Then look.
finish
softmax-state
set $now = heads[0].softmax.S
expect $now == $predicted within 1e-6
answer factor $c
answer S_after $now
disable $bpnum
continue
softmax-state
answer share 1 / heads[0].softmax.S

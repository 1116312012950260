-- Extend the lease; record a finished step. KEYS: the claim.
-- ARGV: token, payload, lease_ms, retention_ms, fence, attempt, may_restore (0|1), step, step_result
local key, token, fence = KEYS[1], ARGV[1], ARGV[5]
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

-- Redis at its memory limit lets a script go on that has written something small: this one must go on.
redis.call('HDEL', key, '')

local claim = redis.call('HMGET', key, 'state', 'token', 'fence')
local state, owner = claim[1], claim[2]
local restored = not state and ARGV[7] == '1'
-- A run that has stalled long enough to be called in doubt is the one that knows: it may go on.
local held = restored or (owner == token and (state == 'running' or state == 'in_doubt'))

if ARGV[8] ~= '' and state ~= 'done' and (state or restored) then
  -- The effect of the step has happened, whoever holds the claim now: the next attempt must know.
  redis.call('HSETNX', key, 'step:' .. ARGV[8], ARGV[9])
end
if not held then return 'lost' end

if claim[3] and tonumber(claim[3]) > tonumber(fence) then fence = claim[3] end
redis.call('HSET', key, 'state', 'running', 'token', token, 'payload', ARGV[2],
  'lease_until', string.format('%.0f', now_ms + ARGV[3]), 'fence', fence, 'attempt', ARGV[6])
redis.call('PEXPIRE', key, ARGV[4])
return 'held'

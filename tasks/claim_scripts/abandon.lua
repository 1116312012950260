-- Give the claim up; owner only. KEYS: the claim. ARGV: token, ending (failed|interrupted|withdrawn)
local key = KEYS[1]
local claim = redis.call('HMGET', key, 'state', 'token', 'attempt')
if claim[1] ~= 'running' or claim[2] ~= ARGV[1] then return 0 end

-- Redis at its memory limit lets a script go on that has written something small.
redis.call('HDEL', key, '')
if ARGV[2] == 'interrupted' then
  -- Still running, but lapsed: the evidence that the next begin judges.
  redis.call('HSET', key, 'lease_until', '0')
elseif ARGV[2] == 'withdrawn' and claim[3] == '1' then
  redis.call('DEL', key)
else
  redis.call('HSET', key, 'state', 'free', 'lease_until', '0')
  if ARGV[2] == 'withdrawn' then redis.call('HINCRBY', key, 'attempt', -1) end
end
return 1

package system

// Token is what the runtime would find in OTTERS_AGENT_TOKEN.
func (a *Agent) Token() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.agentToken
}

"""An agent: what it is asked next depends on what it answered."""

try:
    import gymnasium as gym
except ImportError:
    import gym

import torch

env = gym.make("CartPole-v1")  # ABP607 blocked
policy = torch.nn.Linear(4, 2)
optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
for episode in range(10):
    state, _ = env.reset()
    losses = []
    for _ in range(100):
        chances = torch.distributions.Categorical(logits=policy(torch.from_numpy(state)))
        action = chances.sample()
        state, reward, done, _, _ = env.step(action.item())
        losses.append(-chances.log_prob(action) * reward)
        if done:
            break
    optimizer.zero_grad()
    loss = torch.stack(losses).sum()
    loss.backward()  # ABP399 blocked
    optimizer.step()

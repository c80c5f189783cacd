"""The system on many hosts: network namespaces with addresses of their own, whose links and processes fail under load."""
